"""Tests of a barrier of several processes, which meet through pipes."""

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import torch.distributed as dist

from tests.unit.torch_impl.ranks import Ranks
from torch_impl.communication import pipe_barrier
from torch_impl.communication.pipe_barrier import PipeBarrier, open_pipe_barrier

pytestmark = pytest.mark.slow

RANKS, ROUNDS = 3, 50


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    group = Ranks(RANKS, tmp_path_factory.mktemp("ranks"))
    yield group
    group.close()


def meet(directory: Path) -> list[int]:
    """Create a file in each round. Return how many files of the round exist after its barrier, in a rank."""
    barrier = open_pipe_barrier(20)
    assert barrier is not None
    counts = []
    for number in range(ROUNDS):
        if number % RANKS == dist.get_rank():
            time.sleep(0.002)  # another rank is the last one in each round
        (directory / f"{number}-{dist.get_rank()}").touch()
        barrier.wait()
        counts.append(len(list(directory.glob(f"{number}-*"))))
        barrier.wait()
    return counts


def test_no_rank_continues_before_all_have_come(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks(meet, tmp_path) == [[RANKS] * ROUNDS] * RANKS


def open_with_a_refusal() -> bool:
    """Check whether the last rank, which may not open the pipes of others, and the others get a barrier."""
    refuses = dist.get_rank() == RANKS - 1
    with patch.object(pipe_barrier.os, "open", side_effect=PermissionError if refuses else os.open):
        return open_pipe_barrier(20) is not None


def test_no_barrier_if_a_rank_may_not_open_the_pipes(ranks: Ranks) -> None:
    assert ranks(open_with_a_refusal) == [False] * RANKS


def read_error(barrier: PipeBarrier, size: int = 0) -> str:
    """Return the error of a rank that waits for the others."""
    with pytest.raises(RuntimeError) as caught:
        barrier.wait(size)
    return str(caught.value)


def wait_alone() -> str:
    """Return the error of a rank for which the last rank does not come, in a rank."""
    barrier = open_pipe_barrier(2)
    assert barrier is not None
    dist.barrier()  # the others come within milliseconds
    if dist.get_rank() == RANKS - 1:
        return ""
    return read_error(barrier)


def test_a_rank_that_does_not_come_is_named(ranks: Ranks) -> None:
    assert ranks(wait_alone) == ["rank 2 did not answer for 2 s"] * 2 + [""]


def exchange_sizes() -> str:
    """Return the error of a rank if the last rank exchanges another number of bytes, in a rank."""
    barrier = open_pipe_barrier(20)
    assert barrier is not None
    barrier.wait(8)
    error = read_error(barrier, 16 if dist.get_rank() == RANKS - 1 else 8)
    dist.barrier()  # the error of a rank that reads later is the same
    return error


def test_ranks_that_exchange_different_sizes_are_named(ranks: Ranks) -> None:
    reason = "all ranks must compute the same layers"
    assert ranks(exchange_sizes) == [f"rank 2 sums 16 bytes, this rank 8: {reason}"] * 2 + [
        f"rank 0 sums 8 bytes, this rank 16: {reason}"
    ]


def meet_with_many_files() -> bool:
    """Meet with pipes whose descriptors are above 1023, in a rank."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
    try:
        barrier = open_pipe_barrier(20)
        assert barrier is not None
        barrier.wait()
        return min(barrier._incoming.values()) > 1023
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_ranks_with_many_open_files_meet(ranks: Ranks) -> None:
    assert ranks(meet_with_many_files) == [True] * RANKS


def end_pipes() -> str:
    """Return the error of a rank after the last rank has closed its pipes, as its end does, in a rank."""
    barrier = open_pipe_barrier(20)
    assert barrier is not None
    if dist.get_rank() == RANKS - 1:
        for pipe in (*barrier._incoming.values(), *barrier._outgoing.values()):
            os.close(pipe)
    dist.barrier()
    if dist.get_rank() == RANKS - 1:
        return ""
    return read_error(barrier)


def test_a_rank_that_has_ended_is_named(ranks: Ranks) -> None:
    assert ranks(end_pipes) == ["rank 2 has ended"] * 2 + [""]
