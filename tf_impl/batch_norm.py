"""BatchNorm in several replicas: each has the statistics of its own shard, and moving statistics are their means."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import ops
from keras.layers import BatchNormalization

STATISTICS = ("moving_mean", "moving_variance")


def statistics(model: keras.Model) -> list[keras.Variable]:
    """The moving statistics."""
    return [each for each in model.non_trainable_variables if each.name in STATISTICS]


class AlignedBatchNorm(BatchNormalization):
    """With PyTorch's moving variance, which is moved by the unbiased variance of the batch."""

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: Any = None) -> Any:
        if not (training and self.trainable):
            return super().call(inputs, training=False)
        x = tf.cast(inputs, self.moving_mean.dtype)
        mean, variance = tf.nn.moments(x, self._reduction_axes)
        count = tf.cast(tf.size(x) / tf.size(mean), x.dtype)
        self._move(self.moving_mean, mean)
        self._move(self.moving_variance, variance * (count / (count - 1)))
        normalized = ops.batch_normalization(
            x, mean, variance, self.axis, getattr(self, "beta", None), getattr(self, "gamma", None), self.epsilon
        )
        return tf.cast(normalized, self.compute_dtype)

    def _move(self, variable: keras.Variable, value: tf.Tensor) -> None:
        """In this replica's copy alone: see `average_statistics`."""
        moved = variable.value * self.momentum + value * (1 - self.momentum)
        tf.raw_ops.AssignVariableOp(resource=variable.value.handle, value=tf.stop_gradient(moved))


def align_batch_norm(model: keras.Layer) -> None:
    """Have BatchNorm layers move their statistics as PyTorch's do."""
    for layer in model._flatten_layers():
        if type(layer) is BatchNormalization:
            layer.__class__ = AlignedBatchNorm


def averaging(strategy: tf.distribute.Strategy, model: keras.Model) -> Callable[[], None]:
    """A function that sets the moving statistics of every replica to the mean over all.

    Moving statistics are linear in the statistics of the batches, so their mean after any number of steps is what the
    mean in each step would have led to.
    """

    def replica_step() -> None:
        replica = tf.distribute.get_replica_context()
        for each in statistics(model):
            mean = replica.all_reduce(tf.distribute.ReduceOp.MEAN, tf.identity(each.value))
            tf.raw_ops.AssignVariableOp(resource=each.value.handle, value=mean)

    def average() -> None:
        strategy.run(replica_step)

    return tf.function(average) if statistics(model) else lambda: None
