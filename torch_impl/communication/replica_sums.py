"""Sums over the replicas, which are ranks of a process group or threads of one process."""

import sys
from collections.abc import Callable
from threading import Barrier, local

import torch
import torch.distributed as dist
from torch.autograd.function import FunctionCtx
from typing_extensions import override

from torch_impl.communication.shared_memory import open_shared_memory

SumOverReplicas = Callable[[torch.Tensor], torch.Tensor]  # gradients flow through the sum


def make_sum_over_ranks(timeout: float) -> SumOverReplicas:
    """Return a function that sums over all ranks, on one host in memory that they share.

    The function uses its own memory or process group, because another thread may reduce gradients at the same time.

    Args:
        timeout: Seconds that a rank waits for the others.
    """
    memory = open_shared_memory(timeout) if dist.get_backend() == "gloo" else None
    group = dist.new_group() if memory is None else None

    def add_up(x: torch.Tensor) -> torch.Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        if memory is None:
            dist.all_reduce(total, group=group)
        else:
            memory.sum(total.view(-1))
        return total

    if "torch._dynamo" in sys.modules:  # `compile_model` imports it, which takes seconds
        add_up = torch.compiler.disable(add_up)

    class SumOverRanks(torch.autograd.Function):
        @staticmethod
        @override
        def forward(ctx: FunctionCtx, x: torch.Tensor) -> torch.Tensor:
            return add_up(x)

        @staticmethod
        @override
        def backward(ctx: FunctionCtx, *gradients: torch.Tensor) -> torch.Tensor:
            return add_up(gradients[0])

    return SumOverRanks.apply


class SumOverThreads:
    """A sum over replicas that are threads of one process, in the order of the replicas."""

    def __init__(self, count: int) -> None:
        """Prepare a sum over `count` replicas."""
        self._barrier, self._terms, self._replica = Barrier(count), [torch.empty(0)] * count, local()

    def enter(self, replica: int) -> None:
        """Set the index of the replica that the current thread computes."""
        self._replica.index = replica

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the tensors of all replicas. Wait until every replica has passed its tensor."""
        self._terms[self._replica.index] = x
        self._barrier.wait()
        total = torch.stack([term.to(x.device) for term in self._terms]).sum(0)
        self._barrier.wait()  # until all threads have read the terms
        return total

    def abort(self) -> None:
        """Stop the other replicas from waiting, because one has failed."""
        self._barrier.abort()

    def __deepcopy__(self, memo: dict[int, object]) -> "SumOverThreads":
        return self  # copies of a model are the replicas, which sum with each other
