"""An optimizer of TensorFlow's variables that computes the update rules of common.training.optimizer_rules."""

from collections.abc import Sequence

import tensorflow as tf

from common.config.schema import Config
from common.training.optimizer_rules import build_rule
from tf_impl.fused_optimizer import Scalar


class RuleOptimizer:
    """An optimizer whose update is a rule of common.training.optimizer_rules. It updates one variable at a time.

    The class has the attributes and methods of `FusedOptimizer`. A scalar is a number in an update that may depend on
    the step, such as the learning rate.

    Attributes:
        rule: The rule of the next update. A schedule that cycles the momentum replaces it.
    """

    def __init__(self, config: Config) -> None:
        """Prepare the rule of an optimizer."""
        self.config, self.rule = config, build_rule(config.optimizer)
        self.slot_count, self.scalar_count = len(config.optimizer.slots), self.rule.scalar_count
        if config.schedule.sets_momentum:
            self.scalar_count += 1
        self.torch_slot_ratios = [1.0] * self.slot_count  # the slots are equal to PyTorch's

    def compute_scalars(self, rate: Scalar, weight_decay: float, step: Scalar) -> list[Scalar]:
        """Return the scalars of update `step`, from 1. If the schedule sets the momentum, it is the last scalar."""
        assert isinstance(rate, float) and isinstance(step, int), "only FusedOptimizer computes scalars from tensors"
        scalars: list[Scalar] = [*self.rule.compute_scalars(rate, weight_decay, step)]
        if self.config.schedule.sets_momentum:
            settings = self.rule.settings
            scalars.append(getattr(settings, settings.momentum_key))
        return scalars

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
            has_weight_decay: Not needed here: without weight decay, the decay among the scalars is 0.
        """
        dtype = gradient.dtype
        before = [tf.raw_ops.ReadVariableOp(resource=slot.handle, dtype=dtype) for slot in slots]
        weight = tf.raw_ops.ReadVariableOp(resource=parameter.handle, dtype=dtype)
        rule = self.rule
        if self.config.schedule.sets_momentum:
            *scalars, momentum = scalars
            rule = build_rule(self.config.optimizer.with_momentum(momentum))
        change, after = rule.compute(tf, weight, gradient, before, scalars)
        tf.raw_ops.AssignAddVariableOp(resource=parameter.handle, value=change)
        for slot, value in zip(slots, after, strict=True):
            tf.raw_ops.AssignVariableOp(resource=slot.handle, value=value)
