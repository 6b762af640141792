"""Tests of averages that several processes compute in shared memory, against exact averages."""

import os
from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.torch_impl.ranks import Ranks
from torch_impl.communication import shared_memory
from torch_impl.communication.shared_memory import SharedMemory, open_shared_memory

pytestmark = pytest.mark.slow

PIECE = 3 * 64 * 2  # in bytes: 24 or 48 numbers for each of two ranks, or 16 or 32 for each of three
Averages = list[tuple[np.ndarray, np.ndarray]]


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    group = Ranks(request.param, tmp_path_factory.mktemp("ranks"))
    assert group(prepare) == [True] * request.param
    yield group
    group.close()


def prepare() -> bool:
    """Map memory for pieces of a few numbers, in a rank."""
    os.environ["LOCAL_RANK"] = str(dist.get_rank())
    with patch.object(shared_memory, "PIECE_BYTES", PIECE):
        prepare.shared = open_shared_memory(20)  # type: ignore[attr-defined]
    return prepare.shared is not None  # type: ignore[attr-defined]


def averages(lengths: list[int], dtype: str, seed: int) -> Averages:
    """Return the average of the numbers of all ranks and the exact average for each length, in a rank.

    A sum of them comes first, divided by the number of ranks.
    """
    draw = torch.Generator().manual_seed(seed)
    pairs = []
    for length in lengths:
        drawn = torch.randn(dist.get_world_size(), length, generator=draw, dtype=torch.float64).to(
            getattr(torch, dtype)
        )
        tensor, summed = drawn[dist.get_rank()].clone(), drawn[dist.get_rank()].clone()
        prepare.shared.sum(summed)  # type: ignore[attr-defined]
        prepare.shared.average(tensor)  # type: ignore[attr-defined]
        exact = drawn.double().mean(0).numpy()
        pairs += [((summed / dist.get_world_size()).numpy(), exact), (tensor.numpy(), exact)]
    return pairs


def check(averages_of_ranks: list[Averages], dtype: str) -> None:
    tolerance = {"float32": 1e-6, "float64": 1e-15}[dtype]
    for rank_averages in averages_of_ranks:
        for (average, exact), (first, _) in zip(rank_averages, averages_of_ranks[0], strict=True):
            np.testing.assert_array_equal(average, first)
            np.testing.assert_allclose(average, exact, rtol=0, atol=tolerance)


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(0, 200), min_size=1, max_size=4),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_average_is_exact_and_the_same_in_every_rank(
    ranks: Ranks, lengths: list[int], dtype: str, seed: int
) -> None:
    check(ranks(averages, lengths, dtype, seed), dtype)


def overwritten(lengths: list[int], dtype: str, seed: int) -> Averages:
    """Return `averages` computed while rank 0 overwrites the part that another rank has averaged."""
    original = SharedMemory._view_shared

    def broken(self: SharedMemory, row: int, column: int, like: torch.Tensor) -> torch.Tensor:
        return original(self, row, min(column, 0) if self.rank == 0 else column, like)

    with patch.object(SharedMemory, "_view_shared", broken):
        return averages(lengths, dtype, seed)


def test_a_part_in_the_wrong_place_is_seen(ranks: Ranks) -> None:
    with pytest.raises(AssertionError):
        check(ranks(overwritten, [100], "float32", 0), "float32")
    check(ranks(averages, [100], "float32", 0), "float32")


def map_across_hosts() -> bool:
    """Check whether a rank maps memory if the last rank is the first rank of another host."""
    if dist.get_rank() == dist.get_world_size() - 1:
        with patch.dict(os.environ, LOCAL_RANK="0"):
            return open_shared_memory(20) is not None
    return open_shared_memory(20) is not None


def test_no_memory_if_a_rank_is_on_another_host(ranks: Ranks) -> None:
    assert not any(ranks(map_across_hosts))
