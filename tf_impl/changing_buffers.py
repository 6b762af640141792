"""Variables that forward passes in training mode change, other than BatchNorm's moving statistics.

Preparation has found out whether the new value of a variable depends on the examples. If it does not, every replica
computes the same value. If it does, the replicas continue after every step with the mean of their copies, which
model.buffers=average permits.
"""

from collections.abc import Callable, Collection, Mapping

import keras
import tensorflow as tf

from common.errors import UserError
from common.map.changing_buffers import describe_unequal_replicas

# Largest difference of buffers that count as equal, relative to the largest element. The mean of float32 values has
# smaller rounding errors.
TOLERANCE = 1e-6

Buffers = dict[str, keras.Variable]  # buffers by name


def mark_changing_buffers(model: keras.Model, depend_on_examples: Mapping[str, bool]) -> None:
    """Store in the model which of its variables change, and whether their new values depend on the examples.

    Args:
        model: The model.
        depend_on_examples: Whether the new value depends on the examples, by the variable's name in checkpoints.
    """
    model.changing_buffers = dict(depend_on_examples)


def find_changing_buffers(model: keras.Model, dependent: bool | None = None) -> Buffers:
    """Return the variables of a model that forward passes change, by name.

    Args:
        model: The model. If `mark_changing_buffers` was not called for it, it has no such variables.
        dependent: True for the variables whose new values depend on the examples, False for the others, None for all.
    """
    marks: Mapping[str, bool] = getattr(model, "changing_buffers", {})
    names = {name for name, mark in marks.items() if dependent in (None, mark)}
    return {
        name: parameter.variable
        for parameter in (model.named_parameters if names else ())
        for name in parameter.names
        if name in names
    }


def build_averaging(strategy: tf.distribute.Strategy, variables: Collection[keras.Variable]) -> Callable[[], None]:
    """Return a function that sets the variables of every replica to their mean over all replicas."""

    def replica_step() -> None:
        replica = tf.distribute.get_replica_context()
        for variable in variables:
            mean = replica.all_reduce(tf.distribute.ReduceOp.MEAN, tf.identity(variable.value))
            tf.raw_ops.AssignVariableOp(resource=variable.value.handle, value=mean)

    def average() -> None:
        strategy.run(replica_step)

    return tf.function(average) if variables else lambda: None


def build_buffer_check(strategy: tf.distribute.Strategy, model: keras.Model) -> Callable[[], None]:
    """Return a function that raises UserError if a variable that should be the same in all replicas is not."""
    buffers = find_changing_buffers(model, dependent=False)

    def replica_step() -> list[tf.Tensor]:
        replica = tf.distribute.get_replica_context()
        difference_counts = []
        for variable in buffers.values():
            x = tf.cast(tf.identity(variable.value), tf.float64)
            mean = replica.all_reduce(tf.distribute.ReduceOp.MEAN, x)
            limit = TOLERANCE * tf.reduce_max(tf.abs(x))
            count = tf.reduce_sum(tf.cast(tf.abs(x - mean) > limit, tf.float64))
            difference_counts.append(replica.all_reduce(tf.distribute.ReduceOp.SUM, count))
        return difference_counts

    @tf.function
    def count_differences() -> list[tf.Tensor]:
        return [strategy.experimental_local_results(count)[0] for count in strategy.run(replica_step)]

    def check() -> None:
        for name, count in zip(buffers, count_differences() if buffers else (), strict=True):
            if count > 0:
                raise UserError(describe_unequal_replicas(name))

    return check
