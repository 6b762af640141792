"""BatchNorm in several replicas: each has the statistics of its own shard, or all have those of the global batch."""

from collections.abc import Callable
from threading import Barrier, local
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm

STATISTICS = ("running_mean", "running_var")
SumOverReplicas = Callable[[torch.Tensor], torch.Tensor]  # over the replicas; gradients flow through it


def find_moving_statistics(model: Module) -> dict[str, torch.Tensor]:
    """The moving statistics, by name."""
    return {name: each for name, each in model.named_buffers() if name.rpartition(".")[2] in STATISTICS}


def average_statistics(model: Module, all_reduce: Callable[[torch.Tensor], object], world_size: int) -> None:
    """Set the moving statistics of every replica to the mean over all. all_reduce: sums over the ranks, in place.

    Moving statistics are linear in the statistics of the batches, so their mean after any number of steps is what the
    mean in each step would have led to.
    """
    for each in find_moving_statistics(model).values():
        all_reduce(each)
        each /= world_size


class SynchronizedBatchNorm(_BatchNorm):
    """With the mean and the variance of all replicas' examples, on any device: PyTorch's own needs a GPU."""

    sum: SumOverReplicas
    real: torch.Tensor | None  # see `use_real_rows`

    def _check_input_dim(self, input: torch.Tensor) -> None:
        """Any will do."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(input)
        axes = [axis for axis in range(input.dim()) if axis != 1]
        shape = [1, -1, *[1] * (input.dim() - 2)]
        x = input if input.dtype == torch.float64 else input.float()
        real = self._real(x)
        own = torch.cat(((x * real).sum(axes), real.sum().view(1) * x[0, 0].numel()))
        sums = self.sum(own)
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centred = x - mean.view(shape)
        variance = self.sum((centred.square() * real).sum(axes)) / count
        self._move(mean.detach(), variance.detach() * (count / (count - 1)))
        x = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.weight is not None:
            x = x * self.weight.view(shape) + self.bias.view(shape)
        return x.to(input.dtype)

    def _real(self, x: torch.Tensor) -> torch.Tensor:
        """1 for each row of x that is of an example and 0 for the others, in a shape that goes with x."""
        shape = [-1, *[1] * (x.dim() - 1)]
        if self.real is None:
            return torch.ones(len(x), dtype=x.dtype, device=x.device).view(shape)
        return self.real.repeat_interleave(len(x) // len(self.real)).to(x.dtype).view(shape)

    @torch.no_grad()
    def _move(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.momentum is None:
            return
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), self.momentum)


def synchronize_batch_norm(model: Module, sum_of: SumOverReplicas) -> None:
    """Have the BatchNorm layers of a model use the statistics of all replicas."""
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.__class__ = SynchronizedBatchNorm
            assert isinstance(module, SynchronizedBatchNorm)
            module.sum, module.real = sum_of, None


def use_real_rows(model: Module, real: torch.Tensor | None) -> None:
    """Have the statistics leave out rows of the batch that is about to be computed. real: int32 [n], 0 for these.

    None leaves out none. A layer may have several rows of an example, one after the other.
    """
    for module in model.modules():
        if isinstance(module, SynchronizedBatchNorm):
            module.real = real


def make_sum_over_ranks() -> SumOverReplicas:
    """A sum over the processes, in a group of its own: gradients may be reduced in another thread meanwhile."""
    group = dist.new_group()

    class SumOverRanks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            x = x.clone()
            dist.all_reduce(x, group=group)
            return x

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            gradient = gradients[0].clone()
            dist.all_reduce(gradient, group=group)
            return gradient

    return SumOverRanks.apply


class SumOverThreads:
    """A sum over replicas that are threads of one process, in the order of the replicas."""

    def __init__(self, count: int) -> None:
        self._barrier, self._parts, self._replica = Barrier(count), [torch.empty(0)] * count, local()

    def enter(self, replica: int) -> None:
        """In the thread of a replica."""
        self._replica.index = replica

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self._parts[self._replica.index] = x
        self._barrier.wait()
        total = torch.stack([part.to(x.device) for part in self._parts]).sum(0)
        self._barrier.wait()  # until all have read the parts
        return total

    def abort(self) -> None:
        """A replica has failed; the others must not wait for it."""
        self._barrier.abort()

    def __deepcopy__(self, memo: dict[int, Any]) -> "SumOverThreads":
        return self
