"""BatchNorm over several replicas: the statistics of each replica's shard, or of the global batch.

A batch that is too small for all replicas is filled up with padding rows, which must not count in the statistics. The
other rows, which belong to examples, are called real.
"""

from collections.abc import Callable

import torch
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from typing_extensions import override

from common.errors import UserError
from torch_impl.changing_buffers import find_changing_buffers
from torch_impl.communication.replica_sums import SumOverReplicas
from torch_impl.keras_module import KerasModule

STATISTICS = ("running_mean", "running_var")
KERAS_STATISTICS = ("moving_mean", "moving_variance")
FORWARD_PASSES = (_BatchNorm.forward, torch.nn.SyncBatchNorm.forward)


def find_moving_statistics(model: Module) -> dict[str, torch.Tensor]:
    """Return the moving means and variances of all BatchNorm layers by name."""
    changing = find_changing_buffers(model)
    statistics = KERAS_STATISTICS if isinstance(model, KerasModule) else STATISTICS
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if name not in changing and _get_role(model, name) in statistics
    }


def _get_role(model: Module, name: str) -> str:
    """Return the name of a buffer within its layer. Keras separates names by slashes; repeated paths end with #2."""
    is_keras = isinstance(model, KerasModule)
    return name.rpartition("/")[2].partition("#")[0] if is_keras else name.rpartition(".")[2]


def list_batch_norm_buffers(model: Module) -> list[str]:
    """Return the names of the buffers of BatchNorm layers, except for counters that the layer needs (momentum=None)."""
    if isinstance(model, KerasModule):
        return model.list_batch_norm_variables()
    return [
        f"{path}.{role}" if path else role
        for path, module in model.named_modules()
        if isinstance(module, _NormBase)
        for role, _ in module.named_buffers(recurse=False)
        if role in STATISTICS or module.momentum is not None
    ]


def average_statistics(model: Module, all_reduce: Callable[[torch.Tensor], object], world_size: int) -> None:
    """Set the moving statistics of every replica to their mean over all replicas.

    Averaging before the statistics are read suffices: moving statistics are linear in the statistics of the batches, so
    averaging once has the same result as averaging after every step.

    Args:
        model: The model of this rank.
        all_reduce: A function that sums a tensor over the ranks, in place.
        world_size: The number of ranks.
    """
    for statistic in find_moving_statistics(model).values():
        all_reduce(statistic)
        statistic /= world_size


def _broadcast_channels(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return one value for each channel in a shape that broadcasts to x [n, channels, ...]."""
    return values.view(1, -1, *[1] * (x.dim() - 2))


class RowAwareLayer(Module):
    """A BatchNorm layer that can compute its statistics over all replicas, without padding rows."""

    sum_over_replicas: SumOverReplicas
    real_rows: torch.Tensor | None  # set by `use_real_rows`

    def broadcast_real_rows(self, x: torch.Tensor) -> torch.Tensor:
        """Return 1 for each row of x that belongs to an example and 0 for padding, in a shape that broadcasts to x."""
        shape = [-1, *[1] * (x.dim() - 1)]
        if self.real_rows is None:
            return torch.ones(len(x), dtype=x.dtype, device=x.device).view(shape)
        return self.real_rows.repeat_interleave(len(x) // len(self.real_rows)).to(x.dtype).view(shape)


class _SavedContext(FunctionCtx):
    """Keep what the backward passes of the functions below need."""

    saved_tensors: tuple[torch.Tensor, ...]
    epsilon: float


class _LocalMoments(torch.autograd.Function):
    """The mean and the variance of each channel of x [n, channels, ...]."""

    @staticmethod
    @override
    def forward(ctx: _SavedContext, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        axes, count = [axis for axis in range(x.dim()) if axis != 1], x.numel() // x.shape[1]
        mean = x.sum(axes) / count
        variance = (x - _broadcast_channels(mean, x)).square_().sum(axes) / count  # 5 times as fast as torch.var_mean
        ctx.save_for_backward(x, mean)
        return mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: _SavedContext, of_mean: torch.Tensor, of_variance: torch.Tensor) -> torch.Tensor:
        x, mean = ctx.saved_tensors
        count = x.numel() // x.shape[1]
        slope = 2 * of_variance / count
        return _scale_channels(x, slope, of_mean / count - slope * mean)


class _Normalize(torch.autograd.Function):
    """weight * (x - mean) / sqrt(variance + epsilon) + bias for x [n, channels, ...] and given statistics.

    PyTorch's own operation has no gradients of the statistics.
    """

    @staticmethod
    @override
    def forward(
        ctx: _SavedContext,
        x: torch.Tensor,
        mean: torch.Tensor,
        variance: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        epsilon: float,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, mean, variance, weight)
        ctx.epsilon = epsilon
        return torch.nn.functional.batch_norm(x, mean, variance, weight, bias, eps=epsilon)

    @staticmethod
    @once_differentiable
    def backward(ctx: _SavedContext, of_y: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, mean, variance, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            of_y, x, weight, mean, variance, None, None, False, ctx.epsilon, [True, True, True]
        )
        inverse_deviation = torch.rsqrt(variance + ctx.epsilon)
        of_mean = -of_bias * weight * inverse_deviation
        of_variance = -0.5 * of_weight * weight * inverse_deviation.square()
        return of_x, of_mean, of_variance, of_weight, of_bias, None


def _scale_channels(x: torch.Tensor, factor: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """Return x [n, channels, ...] times a factor plus an offset, which each channel has."""
    zeros, ones = torch.zeros_like(factor), torch.ones_like(factor)
    return torch.nn.functional.batch_norm(x, zeros, ones, factor, offset, eps=0.0)  # faster than addcmul


class SynchronizedBatchNorm(RowAwareLayer, _BatchNorm):
    """BatchNorm with the mean and variance over the examples of all replicas, on any device.

    `torch.nn.SyncBatchNorm` needs a GPU.
    """

    @override
    def _check_input_dim(self, input: torch.Tensor) -> None:
        """Accept inputs of any number of dimensions."""

    @override
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(input)
        x = input if input.dtype == torch.float64 else input.float()
        local_count, local_mean, local_variance = self._compute_local_moments(x)
        # The sum of each channel, then the number of values in each channel, in one tensor for one all-reduce.
        sums = self.sum_over_replicas(torch.cat((local_mean * local_count, local_count)))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        # The squared deviations from the mean of all replicas, from those from the mean of this replica.
        squares = local_count * (local_variance + (local_mean - mean).square())
        variance = self.sum_over_replicas(squares) / count
        unbiased = variance.detach() * (count / (count - 1))  # the variance that torch.nn.BatchNorm averages
        self._update_moving_statistics(mean.detach(), unbiased)
        weight = torch.ones_like(mean) if self.weight is None else self.weight.to(x)
        bias = torch.zeros_like(mean) if self.bias is None else self.bias.to(x)
        normalized: torch.Tensor = _Normalize.apply(x, mean, variance, weight, bias, self.eps)
        return normalized.to(input.dtype)

    def _compute_local_moments(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the number of real values in a channel [1], and the mean and the variance of each channel."""
        if self.real_rows is None:
            return x.new_full([1], x.numel() // x.shape[1]), *_LocalMoments.apply(x)
        axes = [axis for axis in range(x.dim()) if axis != 1]
        real = self.broadcast_real_rows(x)
        count = real.sum().view(1) * x[0, 0].numel()
        mean = (x * real).sum(axes) / count.clamp(min=1)
        squares = (x - _broadcast_channels(mean, x)).square() * real
        return count, mean, squares.sum(axes) / count.clamp(min=1)

    @torch.no_grad()
    def _update_moving_statistics(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        for statistic, value in ((self.running_mean, mean), (self.running_var, variance)):
            if self.momentum is None:  # the moving statistic is the mean over all batches
                statistic.lerp_(value.to(statistic), self.num_batches_tracked.to(statistic).reciprocal())
            else:
                statistic.lerp_(value.to(statistic), self.momentum)


def synchronize_batch_norm(model: Module, sum_over_replicas: SumOverReplicas) -> None:
    """Make the BatchNorm layers of a model use the statistics of all replicas.

    Raises:
        UserError: A layer overrides `forward`, which would be replaced.
    """
    for name, module in model.named_modules():
        if isinstance(module, RowAwareLayer):  # a layer of a Keras model, which computes this itself
            module.sum_over_replicas = sum_over_replicas
        if isinstance(module, _BatchNorm):
            if type(module).forward not in FORWARD_PASSES:
                raise UserError(
                    f"model.sync_batch_norm=true: layer {name or 'model'} ({type(module).__name__}) is a BatchNorm "
                    "with a forward pass of its own, which would be replaced; use torch.nn's own class, or set it to "
                    "false"
                )
            module.__class__ = SynchronizedBatchNorm
            assert isinstance(module, SynchronizedBatchNorm)
            module.sum_over_replicas, module.real_rows = sum_over_replicas, None


def use_real_rows(model: Module, real_rows: torch.Tensor | None) -> None:
    """Exclude padding rows of the next batch from the statistics of synchronized BatchNorm layers.

    Args:
        model: The model that computes the batch.
        real_rows: int32 [n], 1 for an example and 0 for padding; None if there is no padding. A layer may receive
            several consecutive rows for each example.
    """
    for module in model.modules():
        if isinstance(module, RowAwareLayer):
            module.real_rows = real_rows
