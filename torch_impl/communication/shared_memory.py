"""Averages of gradients over the ranks of one host, in memory that they share; Gloo sends them through sockets."""

import math
import os
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.futures import Future
from torch.profiler import record_function

PIECE_BYTES = 16 << 20  # that are averaged at once
ALIGNED = 64  # bytes


class SharedMemory:
    """The gradient buckets of DDP, averaged by a thread while backward runs.

    A piece of a bucket is cut into as many parts as there are ranks. memory: uint8 [world size, world size, bytes of a
    part], which all ranks have mapped. Rank r writes part p to [r, p], and the sum of all parts r to [r, r].
    """

    def __init__(self, memory: torch.Tensor, timeout: float) -> None:
        """`timeout`: seconds for which a rank waits for the others."""
        self.memory, self.rank, self.world_size = memory, dist.get_rank(), len(memory)
        self.group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))  # of the thread alone
        self.thread = ThreadPoolExecutor(1)

    def hook(self, state: Any, bucket: dist.GradBucket) -> Future[torch.Tensor]:
        """A communication hook."""
        if bucket.buffer().is_sparse:
            return default_hooks.allreduce_hook(state, bucket)
        begun: Future[None] = Future()
        averaged = begun.then(partial(self._average_bucket, bucket.buffer()))  # in the thread that completes `begun`
        self.thread.submit(begun.set_result, None)
        return averaged

    def _average_bucket(self, bucket: torch.Tensor, _: Future[None]) -> torch.Tensor:
        with record_function("reduce"):
            self.average(bucket)
        return bucket

    def average(self, tensor: torch.Tensor) -> None:
        """Replace a tensor of one dimension by the average over all ranks, which is the same bits in each.

        Raises RuntimeError where a rank ends, or does not come in time.
        """
        for piece in tensor.split(self.world_size * (self.memory.shape[2] // tensor.element_size())):
            self._average(piece)

    def _average(self, piece: torch.Tensor) -> None:
        parts = piece.tensor_split(self.world_size)
        others = [rank for rank in range(self.world_size) if rank != self.rank]
        for other in others:
            self._shared(self.rank, other, parts[other]).copy_(parts[other])
        dist.barrier(self.group)
        mine = parts[self.rank]
        total = self._shared(self.rank, self.rank, mine)
        torch.add(mine, self._shared(others[0], self.rank, mine), out=total)
        for other in others[1:]:
            total.add_(self._shared(other, self.rank, mine))
        dist.barrier(self.group)
        for rank, part in enumerate(parts):
            torch.div(self._shared(rank, rank, part), self.world_size, out=part)

    def _shared(self, row: int, column: int, like: torch.Tensor) -> torch.Tensor:
        return self.memory[row, column].view(like.dtype)[: len(like)]


def map_memory() -> torch.Tensor | None:
    """The `memory` of SharedMemory, or None where a rank is on another host or cannot map it.

    It is an anonymous file, of which nothing is left when the ranks have ended.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    alone, one_host = world_size == 1, int(os.environ["LOCAL_RANK"]) == rank
    shape = world_size, world_size, PIECE_BYTES // world_size // ALIGNED * ALIGNED
    name = f"lockstep-{uuid.uuid4()}"
    file = os.memfd_create(name) if rank == 0 and sys.platform == "linux" else None
    offered = [f"/proc/{os.getpid()}/fd/{file}", name]
    dist.broadcast_object_list(offered)
    memory = None
    with suppress(OSError, RuntimeError):
        if one_host and not alone and os.readlink(offered[0]).startswith(f"/memfd:{offered[1]} "):
            memory = torch.from_file(offered[0], shared=True, size=math.prod(shape), dtype=torch.uint8).view(shape)
    mapped = torch.tensor(int(memory is not None))
    dist.all_reduce(mapped, dist.ReduceOp.MIN)
    if file is not None:
        os.close(file)
    return memory if mapped else None
