"""PyTorch's SGD, Adam and AdamW, computed by TensorFlow's fused operations."""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from common.config.schema import Config

Scalar: TypeAlias = float | tf.Tensor


class FusedOptimizer:
    """An optimizer whose update is a fused operation. It updates one variable at a time.

    Attributes:
        scalar_count: The number of scalars of an update.
        slot_count: The number of slots of each parameter; TensorFlow's SGD has one even without momentum.
        torch_slot_ratios: For each slot, its values divided by the values of PyTorch's slot.
    """

    scalar_count = 3

    def __init__(self, config: Config, dtype: type[np.floating]) -> None:
        """Prepare to update variables of a data type."""
        self.config, settings = config, config.optimizer
        self.torch_slot_ratios = [1.0]
        if settings.kind != "sgd":
            assert settings.beta1 is not None and settings.beta2 is not None
            self.torch_slot_ratios = [
                _compute_rounding_factor(beta, dtype) for beta in (settings.beta1, settings.beta2)
            ]
        self.slot_count = len(self.torch_slot_ratios)

    def compute_scalars(self, rate: Scalar, weight_decay: float, step: Scalar) -> list[Scalar]:
        """Return the learning rate, epsilon and decay that the fused operations need in update `step`.

        AdamW multiplies the parameters by the decay. The other optimizers multiply the parameters by the decay and add
        the product to the gradients.

        Adam's fused operation adds epsilon to sqrt(v) before bias correction, PyTorch after it. With t = step and
        c = sqrt(1 - beta2^t), both agree if the learning rate is multiplied by c / (1 - beta1^t) and epsilon by c. In
        float32 each slot of the operation, m and v, is too large or too small by a rounding factor. The results make
        up for it (`_compute_rounding_factor`).
        """
        settings = self.config.optimizer
        decay = 1 - rate * weight_decay if settings.kind == "adamw" else weight_decay
        if settings.kind == "sgd":
            return [rate, 0.0, decay]
        assert settings.beta1 is not None and settings.beta2 is not None and settings.epsilon is not None
        first_factor, second_factor = self.torch_slot_ratios
        correction = (1 - settings.beta2**step) ** 0.5 * math.sqrt(second_factor)
        return [rate * correction / (1 - settings.beta1**step) / first_factor, settings.epsilon * correction, decay]

    def step(
        self,
        parameter: tf.Variable,
        gradient: tf.Tensor,
        slots: Sequence[tf.Variable],
        scalars: Sequence[tf.Tensor],
        has_weight_decay: bool,
    ) -> None:
        """Update a variable and its slots in a replica.

        A handle is this replica's copy of a variable. Each replica makes the same update from the same gradients.

        Args:
            parameter: The variable.
            gradient: The gradient, summed over the replicas.
            slots: The slots of the variable.
            scalars: The result of `compute_scalars`, in the gradient's type.
            has_weight_decay: Whether the weight decay is not 0.
        """
        rate, epsilon, decay = scalars
        if has_weight_decay and self.config.optimizer.kind == "adamw":
            # A subtraction, because 1 - decay is exact, and because an assignment would undo other workers' updates.
            tf.raw_ops.ResourceApplyGradientDescent(
                var=parameter.handle, alpha=1 - decay, delta=parameter, use_locking=True
            )
        elif has_weight_decay:
            gradient += parameter * decay
        if self.config.optimizer.kind == "sgd":
            tf.raw_ops.ResourceApplyMomentum(
                var=parameter.handle,
                accum=slots[0].handle,
                lr=rate,
                grad=gradient,
                momentum=tf.constant(self.config.optimizer.momentum or 0.0, gradient.dtype),
                use_locking=True,
            )
            return
        no_power = tf.zeros([], gradient.dtype)  # no bias correction in the operation: `rate` includes it already
        tf.raw_ops.ResourceApplyAdam(
            var=parameter.handle,
            m=slots[0].handle,
            v=slots[1].handle,
            beta1_power=no_power,
            beta2_power=no_power,
            lr=rate,
            beta1=tf.constant(self.config.optimizer.beta1, gradient.dtype),
            beta2=tf.constant(self.config.optimizer.beta2, gradient.dtype),
            epsilon=epsilon,
            grad=gradient,
            use_locking=True,
        )


def _compute_rounding_factor(beta: float, dtype: type[np.floating]) -> float:
    """Return 1 - beta as the fused operation rounds it, divided by 1 - beta: 1 - 1.3e-5 for 0.999 in float32."""
    return float(dtype(1) - dtype(beta)) / (1 - beta)
