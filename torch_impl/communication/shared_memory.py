"""Sums over the ranks of one host, in memory that the ranks share.

Shared memory is faster than Gloo, which sends gradients through sockets even on one host.
"""

import math
import os
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.futures import Future
from torch.profiler import record_function

from torch_impl.communication.pipe_barrier import PipeBarrier, open_pipe_barrier

PIECE_BYTES = 16 << 20  # size of the pieces of a bucket, which are averaged one after the other
ALIGNMENT = 64  # the size of a part is a multiple of this number of bytes


class SharedMemory:
    """Sums tensors over the ranks, which call its methods in the same order. Only one thread of a rank may call them.

    A piece of a tensor is cut into one part for each rank. Rank r writes its part p to memory[r, p], for rank p to sum.
    Then rank r sums part r of all ranks into memory[r, r], and all ranks read the sum there.

    Args:
        memory: uint8 [world size, world size, bytes of a part], which all ranks have mapped.
        barrier: the barrier at which the ranks meet.
    """

    def __init__(self, memory: torch.Tensor, barrier: PipeBarrier) -> None:
        self.memory, self.barrier = memory, barrier
        self.rank, self.world_size = dist.get_rank(), len(memory)

    def sum(self, tensor: torch.Tensor) -> None:
        """Replace a tensor [length] by its sum over all ranks. All ranks get the same bits.

        Raises:
            RuntimeError: another rank has ended, does not join within the timeout, or sums another number of bytes.
        """
        for part, total in self._sum_parts(tensor):
            part.copy_(total)

    def average(self, tensor: torch.Tensor) -> None:
        """Replace a tensor [length] by its average over all ranks, as `sum` does."""
        for part, total in self._sum_parts(tensor):
            torch.div(total, self.world_size, out=part)

    def _sum_parts(self, tensor: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield each part of a tensor, and its sum over all ranks, which is in shared memory."""
        for piece in tensor.split(self.world_size * (self.memory.shape[2] // tensor.element_size())):
            yield from self._sum_piece(piece)

    def _sum_piece(self, piece: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Sum a piece. Return each part of it, and its sum over all ranks."""
        parts = piece.tensor_split(self.world_size)
        others = [rank for rank in range(self.world_size) if rank != self.rank]
        for other in others:
            self._view_shared(self.rank, other, parts[other]).copy_(parts[other])
        self.barrier.wait(piece.nbytes)  # until all ranks have written their parts
        local_part = parts[self.rank]
        total = self._view_shared(self.rank, self.rank, local_part)
        torch.add(local_part, self._view_shared(others[0], self.rank, local_part), out=total)
        for other in others[1:]:
            total.add_(self._view_shared(other, self.rank, local_part))
        self.barrier.wait()  # until all ranks have summed their part
        return [(part, self._view_shared(rank, rank, part)) for rank, part in enumerate(parts)]

    def _view_shared(self, row: int, column: int, like: torch.Tensor) -> torch.Tensor:
        """Return memory[row, column] as a tensor of the dtype and length of `like`."""
        return self.memory[row, column].view(like.dtype)[: len(like)]


class BucketAverages:
    """Averages the gradient buckets of DDP in shared memory, in a thread while backward runs."""

    def __init__(self, memory: SharedMemory) -> None:
        self.memory, self.thread = memory, ThreadPoolExecutor(1)

    def hook(self, state: None, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        """Average a bucket in the thread: a communication hook of DDP."""
        if bucket.buffer().is_sparse:  # through Gloo, which is as fast
            return default_hooks.allreduce_hook(state, bucket)  # type: ignore[arg-type]  # None is the default group
        start: Future[None] = Future()
        averaged = start.then(partial(self._average_bucket, bucket.buffer()))  # runs in the thread that sets `start`
        self.thread.submit(start.set_result, None)
        return averaged

    def _average_bucket(self, bucket: torch.Tensor, _: Future[None]) -> torch.Tensor:
        with record_function("reduce"):
            self.memory.average(bucket)
        return bucket


def open_shared_memory(timeout: float) -> SharedMemory | None:
    """Map memory and open pipes for SharedMemory. Every rank calls it.

    Return None if a rank is on another host, or may not open the memory or the pipes of another rank.

    Args:
        timeout: Seconds that a rank waits for the others.
    """
    memory = _map_memory()
    barrier = None if memory is None else open_pipe_barrier(timeout)
    return None if memory is None or barrier is None else SharedMemory(memory, barrier)


def _map_memory() -> torch.Tensor | None:
    """Map memory for SharedMemory. Return None if a rank is on another host or cannot map the memory.

    The memory is an anonymous file of rank 0, which disappears when all ranks have ended.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    is_on_first_host = int(os.environ["LOCAL_RANK"]) == rank
    shape = world_size, world_size, PIECE_BYTES // world_size // ALIGNMENT * ALIGNMENT
    name = f"lockstep-{uuid.uuid4()}"
    file = os.memfd_create(name) if rank == 0 and sys.platform == "linux" else None
    path_and_name = [f"/proc/{os.getpid()}/fd/{file}", name]
    dist.broadcast_object_list(path_and_name)  # all ranks get the values of rank 0
    path, name = path_and_name
    memory = None  # the link of an anonymous file reads "/memfd:NAME (deleted)"; another host has no such link
    with suppress(OSError, RuntimeError):
        if world_size > 1 and is_on_first_host and str(Path(path).readlink()).startswith(f"/memfd:{name} "):
            memory = torch.from_file(path, shared=True, size=math.prod(shape), dtype=torch.uint8).view(shape)
    all_have_mapped = torch.tensor(int(memory is not None))
    dist.all_reduce(all_have_mapped, dist.ReduceOp.MIN)
    if file is not None:
        os.close(file)
    return memory if all_have_mapped else None
