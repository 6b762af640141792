"""Tests of every algorithm against torch's own and against theory, in several processes with many cases each."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.torch_impl.ranks import Ranks
from torch_impl.communication.allreduce import ALGORITHMS, Traffic, all_reduce, ring

pytestmark = pytest.mark.slow

DTYPES = ["float32", "bfloat16", "float64", "float16"]
Sum = tuple[np.ndarray, int, int]  # the result of a rank, and the numbers of messages and bytes that it sent


@pytest.fixture(scope="module", params=[1, 2, 3, *(size for size in (4, 5))])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    group = Ranks(request.param, tmp_path_factory.mktemp("ranks"))
    yield group
    group.close()


def sums(length: int, dtype: str, seed: int) -> dict[str, Sum]:
    """Sum the tensors of all ranks with each algorithm, and in float64 as `exact`, in a rank."""
    kind = getattr(torch, dtype)
    draw = torch.Generator().manual_seed(seed)
    drawn = torch.randn(dist.get_world_size(), length, generator=draw, dtype=torch.float64)
    if kind in (torch.bfloat16, torch.float16):
        drawn = (drawn * 64).round() / 64  # numbers with exact float32 sums that a bfloat16 cannot hold
    drawn = drawn.to(kind)
    results = {"exact": (drawn.double().sum(0).to(kind).double().numpy(), 0, 0)}
    for algorithm in ALGORITHMS:
        tensor, traffic = drawn[dist.get_rank()].clone(), Traffic()
        all_reduce(tensor, algorithm, traffic)
        results[algorithm] = tensor.double().numpy(), traffic.messages, traffic.bytes
    return results


def check(sums_of_ranks: list[dict[str, Sum]], dtype: str) -> None:
    """Check that all ranks have the same bits, and that these equal torch's sums and the exact sums."""
    tolerance = {"float32": 1e-6, "float64": 1e-14}.get(dtype, 0)
    for algorithm, (result, _, _) in sums_of_ranks[0].items():
        for other in sums_of_ranks:
            np.testing.assert_array_equal(other[algorithm][0], result, algorithm)
        for reference in ("native", "exact"):
            exact = sums_of_ranks[0][reference][0]
            np.testing.assert_allclose(result, exact, tolerance, 5 * tolerance, err_msg=algorithm)


def predict_traffic(algorithm: str, rank: int, size: int, length: int, itemsize: int) -> tuple[int, int]:
    """Return the messages and bytes that a rank must send in theory."""
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
    sums_of_ranks = ranks(sums, length, dtype, seed)
    check(sums_of_ranks, dtype)
    for rank, results in enumerate(sums_of_ranks):
        for algorithm in ALGORITHMS:
            expected = predict_traffic(algorithm, rank, len(sums_of_ranks), length, 8 if dtype == "float64" else 4)
            assert results[algorithm][1:] == expected, (algorithm, rank)


def test_long_buffers(ranks: Ranks) -> None:
    """The buffers are longer than a socket holds, so a rank that sends before it receives would hang."""
    size = len(ranks.processes)
    sums_of_ranks = ranks(sums, 60 * 2**14, "float32", 0)
    check(sums_of_ranks, "float32")
    for results in sums_of_ranks:
        assert results["ring"][1:] == (2 * (size - 1), 2 * (size - 1) * 60 * 2**16 // size)


def broken_sums(length: int, dtype: str, seed: int) -> dict[str, Sum]:
    """Sum with a ring that leaves out the last chunk."""
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
    for results in ranks(shaped):
        for algorithm, shape, whole in results:
            assert shape == (2, 4), algorithm
            assert whole == [[0, total, total, 0, 0]] * 4, algorithm
