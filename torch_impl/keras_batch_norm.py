"""BatchNorm of Keras models on PyTorch. It computes what AlignedBatchNorm of tf_impl computes."""

import keras
import torch
from keras.layers import BatchNormalization
from typing_extensions import override

from common.errors import UserError
from torch_impl.batch_norm import RowAwareLayer
from torch_impl.keras_module import KerasModule


class AlignedKerasBatchNorm(RowAwareLayer, BatchNormalization):
    """BatchNorm that averages the unbiased variance, as PyTorch does and as Lockstep makes TensorFlow do.

    `sum_over_replicas` returns its argument unless the statistics are computed over all replicas.
    """

    # Attributes of Keras's layer, which type checkers would take for PyTorch's
    moving_mean: keras.Variable
    moving_variance: keras.Variable
    gamma: keras.Variable
    beta: keras.Variable
    axis: int
    momentum: float
    epsilon: float
    scale: bool
    center: bool
    _reduction_axes: list[int]

    @override
    def call(
        self, inputs: torch.Tensor, training: bool | None = None, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        if not (training and self.trainable):
            return super().call(inputs, training=False)
        axes, shape = self._reduction_axes, [1] * inputs.dim()
        shape[self.axis] = -1
        x = inputs.to(self.moving_mean.value.dtype)
        real = self.broadcast_real_rows(x)  # 1 for values of examples, 0 for padding and, below, for masked positions
        if mask is not None:
            real = real * mask[(..., *[None] * (x.dim() - mask.dim()))].to(x.dtype)
        # Each entry of `real` stands for this many values of a channel.
        values_per_position = x.numel() // real.numel() // x.shape[self.axis]
        # The sum of each channel, then the number of values in each channel, in one tensor for one all-reduce.
        sums = self.sum_over_replicas(torch.cat(((x * real).sum(axes), real.sum().view(1) * values_per_position)))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centred = x - mean.view(shape)
        variance = self.sum_over_replicas((centred.square() * real).sum(axes)) / count
        unbiased = variance.detach() * (count / (count - 1))
        for statistic, value in ((self.moving_mean, mean.detach()), (self.moving_variance, unbiased)):
            statistic.assign(statistic.value * self.momentum + value * (1 - self.momentum))
        x = centred * torch.rsqrt(variance + self.epsilon).view(shape)
        if self.scale:
            x = x * self.gamma.value.view(shape)
        if self.center:
            x = x + self.beta.value.view(shape)
        return x.to(inputs.dtype)


def align_keras_batch_norm(model: KerasModule, over_replicas: bool) -> None:
    """Make the BatchNorm layers of a model compute what TensorFlow's side does.

    Args:
        model: The model.
        over_replicas: Whether `synchronize_batch_norm` will make the layers use the statistics of all replicas.

    Raises:
        UserError: A layer overrides `call`, and so would not use the statistics of all replicas.
    """
    for path, layer in model.layers().items():
        if not isinstance(layer, BatchNormalization):
            continue
        if type(layer).call is BatchNormalization.call:
            layer.__class__ = AlignedKerasBatchNorm
            layer.sum_over_replicas, layer.real_rows = _return_same, None
            layer.synchronized = False  # Keras itself refuses to synchronize on PyTorch
        elif over_replicas:
            raise UserError(
                f"model.sync_batch_norm=true: layer {path or 'model'} ({type(layer).__name__}) is a BatchNormalization "
                "with a call of its own, which cannot use the statistics of all replicas; "
                "use keras.layers' own class, or set it to false"
            )


def _return_same(x: torch.Tensor) -> torch.Tensor:
    return x
