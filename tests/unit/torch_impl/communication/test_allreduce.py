"""Every algorithm against torch's own and against theory, in processes of their own, many cases in each."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.torch_impl.ranks import Ranks
from torch_impl.communication.allreduce import (
    ALGORITHMS,
    Traffic,
    all_reduce,
    bus_bandwidth,
    fit_alpha_beta,
    predict_seconds,
    ring,
)

DTYPES = ["float32", "bfloat16", "float64", "float16"]
Sum = tuple[np.ndarray, int, int]  # a rank's result, and the messages and bytes that it sent


@pytest.fixture(scope="module", params=[1, 2, 3, *(pytest.param(size, marks=pytest.mark.slow) for size in (4, 5))])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    group = Ranks(request.param, tmp_path_factory.mktemp("ranks"))
    yield group
    group.close()


def sums(length: int, dtype: str, seed: int) -> dict[str, Sum]:
    """In a rank: the sum of what all ranks draw, by each algorithm; and as `exact` in float64."""
    kind = getattr(torch, dtype)
    draw = torch.Generator().manual_seed(seed)
    drawn = torch.randn(dist.get_world_size(), length, generator=draw, dtype=torch.float64)
    if kind in (torch.bfloat16, torch.float16):
        drawn = (drawn * 64).round() / 64  # whose float32 sums are exact, and have more digits than a bfloat16
    drawn = drawn.to(kind)
    results = {"exact": (drawn.double().sum(0).to(kind).double().numpy(), 0, 0)}
    for algorithm in ALGORITHMS:
        mine, traffic = drawn[dist.get_rank()].clone(), Traffic()
        all_reduce(mine, algorithm, traffic)
        results[algorithm] = mine.double().numpy(), traffic.messages, traffic.bytes
    return results


def check(found: list[dict[str, Sum]], dtype: str) -> None:
    """The sums of all ranks: the same bits everywhere, equal to torch's own and the exact ones."""
    tolerance = {"float32": 1e-6, "float64": 1e-14}.get(dtype, 0)
    for algorithm, (result, _, _) in found[0].items():
        for other in found:
            np.testing.assert_array_equal(other[algorithm][0], result, algorithm)
        for reference in ("native", "exact"):
            np.testing.assert_allclose(result, found[0][reference][0], tolerance, 5 * tolerance, err_msg=algorithm)


def sent(algorithm: str, rank: int, size: int, length: int, itemsize: int) -> tuple[int, int]:
    """Messages and bytes that a rank must send, in theory."""
    if algorithm == "ring":
        lengths = [len(chunk) for chunk in np.array_split(np.zeros(length), size)]
        twice = [*range(size), *range(size)]
        twice.remove((rank + 1) % size)
        twice.remove((rank + 2) % size)
        moved = [lengths[chunk] for chunk in twice if lengths[chunk]]
        return len(moved), sum(moved) * itemsize
    power = 2 ** int(np.log2(size))
    paired = rank < 2 * (size - power)
    count = {
        "gather_broadcast": size - 1 if rank == 0 else 1,
        "all_to_all": size - 1,
        "recursive_doubling": 1 if paired and rank % 2 == 0 else int(np.log2(power)) + paired,
        "native": 0,
    }[algorithm]
    return (count, count * length * itemsize) if length else (0, 0)


@settings(max_examples=60)
@given(length=st.integers(0, 70), dtype=st.sampled_from(DTYPES), seed=st.integers(0, 2**32 - 1))
def test_every_algorithm_sums_and_sends_what_it_should(ranks: Ranks, length: int, dtype: str, seed: int) -> None:
    found = ranks(sums, length, dtype, seed)
    check(found, dtype)
    for rank, results in enumerate(found):
        for algorithm in ALGORITHMS:
            expected = sent(algorithm, rank, len(found), length, 8 if dtype == "float64" else 4)
            assert results[algorithm][1:] == expected, (algorithm, rank)


def test_long_buffers(ranks: Ranks) -> None:
    """More than a socket holds: nobody sends before it receives."""
    size = len(ranks.processes)
    found = ranks(sums, 60 * 2**14, "float32", 0)
    check(found, "float32")
    for results in found:
        assert results["ring"][1:] == (2 * (size - 1), 2 * (size - 1) * 60 * 2**16 // size)


def broken_sums(length: int, dtype: str, seed: int) -> dict[str, Sum]:
    """A ring that leaves out the last chunk."""
    ALGORITHMS["ring"] = lambda buffer, traffic: ring(buffer[: -max(1, len(buffer) // dist.get_world_size())], traffic)
    try:
        return sums(length, dtype, seed)
    finally:
        ALGORITHMS["ring"] = ring


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dropped_chunk_is_seen(ranks: Ranks, dtype: str) -> None:
    if len(ranks.processes) == 1:
        pytest.skip("one rank sends nothing")
    with pytest.raises(AssertionError, match="ring"):
        check(ranks(broken_sums, 20, dtype, 0), dtype)
    check(ranks(sums, 20, dtype, 0), dtype)


def shaped() -> list[tuple[str, torch.Size, list[list[float]]]]:
    results = []
    for algorithm in ALGORITHMS:
        for dtype in (torch.float32, torch.bfloat16):
            whole = torch.zeros(4, 5, dtype=dtype)
            part = whole.t()[1:3]  # not contiguous
            part += 1 + dist.get_rank()
            all_reduce(part, algorithm, Traffic())
            results.append((algorithm, part.shape, whole.tolist()))
    return results


def test_any_shape_and_only_its_own_memory(ranks: Ranks) -> None:
    total = sum(range(1, len(ranks.processes) + 1))
    for found in ranks(shaped):
        for algorithm, shape, whole in found:
            assert shape == (2, 4), algorithm
            assert whole == [[0, total, total, 0, 0]] * 4, algorithm


# The model


@pytest.mark.parametrize(
    ("algorithm", "four", "five"),
    [  # seconds at alpha = 1, beta = 10 and 8 bytes, by N
        ("gather_broadcast", 6 * 81, 8 * 81),
        ("all_to_all", 3 * 81, 4 * 81),
        ("ring", 6 * 21, 8 * 17),
        ("recursive_doubling", 2 * 81, 4 * 81),
        ("native", 6 * 21, 8 * 17),
    ],
)
def test_predictions(algorithm: str, four: float, five: float) -> None:
    assert predict_seconds(algorithm, 4, 8, 1, 10) == four
    assert predict_seconds(algorithm, 5, 8, 1, 10) == five
    assert predict_seconds(algorithm, 1, 8, 1, 10) == 0


@given(alpha=st.floats(1e-7, 1e-2), beta=st.floats(1e-12, 1e-6))
def test_alpha_and_beta_are_found_again(alpha: float, beta: float) -> None:
    sizes = [4**power for power in range(1, 13)]
    found = fit_alpha_beta(sizes, [alpha + beta * size for size in sizes])
    assert found == pytest.approx((alpha, beta), rel=1e-6)


def test_a_fit_to_noise_is_not_negative() -> None:
    assert fit_alpha_beta([1000, 2000, 3000], [1.0, 3.0, 5.0])[0] == 0
    assert fit_alpha_beta([1000, 2000, 3000], [3.0, 2.0, 1.0])[1] == 0


def test_bus_bandwidth() -> None:
    assert bus_bandwidth(4, 1000, 0.5) == 3000
