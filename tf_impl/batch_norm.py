"""BatchNorm in several replicas: each has the statistics of its own shard, or all have those of the global batch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import local
from typing import Any

import keras
import tensorflow as tf
from keras.layers import BatchNormalization

STATISTICS = ("moving_mean", "moving_variance")
_current = local()  # each replica's function is traced in a thread of its own


def find_moving_statistics(model: keras.Model) -> list[keras.Variable]:
    """The moving statistics."""
    return [each for each in model.non_trainable_variables if each.name in STATISTICS]


class AlignedBatchNorm(BatchNormalization):
    """With PyTorch's moving variance, which is moved by the unbiased variance; `synchronized`: of all replicas."""

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: Any = None) -> Any:
        if not (training and self.trainable):
            return super().call(inputs, training=False)
        x, axes = tf.cast(inputs, self.moving_mean.dtype), self._reduction_axes
        real = self._real(x)
        per_row = tf.cast(tf.size(x[0]) / tf.shape(x)[self.axis], x.dtype)
        sums = self._sum(tf.concat((tf.reduce_sum(x * real, axes), [tf.reduce_sum(real) * per_row]), 0))
        count = sums[-1]
        mean = sums[:-1] / count
        centred = x - self._along(mean, x)
        variance = self._sum(tf.reduce_sum(tf.square(centred) * real, axes)) / count
        self._move(self.moving_mean, mean)
        self._move(self.moving_variance, variance * (count / (count - 1)))
        x = centred * self._along(tf.math.rsqrt(variance + self.epsilon), x)
        if self.scale:
            x *= self._along(self.gamma, x)
        if self.center:
            x += self._along(self.beta, x)
        return tf.cast(x, self.compute_dtype)

    def _real(self, x: tf.Tensor) -> tf.Tensor:
        """1 for each row of x that is of an example and 0 for the others, in a shape that goes with x."""
        real = getattr(_current, "real", None)
        if real is None:
            real = tf.ones(tf.shape(x)[:1], x.dtype)
        real = tf.repeat(tf.cast(real, x.dtype), tf.shape(x)[0] // tf.shape(real)[0])
        return tf.reshape(real, [-1, *[1] * (x.shape.rank - 1)])

    def _sum(self, x: tf.Tensor) -> tf.Tensor:
        """Over the replicas."""
        if not self.synchronized:
            return x
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, x)

    def _along(self, values: Any, x: tf.Tensor) -> tf.Tensor:
        """Values of the channels in the shape of x."""
        shape = [1] * x.shape.rank
        shape[self.axis] = -1
        return tf.reshape(tf.convert_to_tensor(values), shape)

    def _move(self, variable: keras.Variable, value: tf.Tensor) -> None:
        """In this replica's copy alone: see `averaging`."""
        moved = variable.value * self.momentum + value * (1 - self.momentum)
        tf.raw_ops.AssignVariableOp(resource=variable.value.handle, value=tf.stop_gradient(moved))


def synchronize_batch_norm(model: keras.Layer, over_replicas: bool) -> None:
    """Have BatchNorm layers compute what PyTorch's do, with the statistics of all replicas or of their own."""
    for layer in model._flatten_layers():
        if type(layer) is BatchNormalization:
            layer.__class__ = AlignedBatchNorm
            layer.synchronized = over_replicas


@contextmanager
def use_real_rows(real: tf.Tensor | None) -> Iterator[None]:
    """Have the statistics leave out rows of the batch that is computed meanwhile. real: int32 [n], 0 for these.

    None leaves out none. A layer may have several rows of an example, one after the other.
    """
    _current.real = real
    try:
        yield
    finally:
        _current.real = None


def build_statistics_averaging(strategy: tf.distribute.Strategy, model: keras.Model) -> Callable[[], None]:
    """A function that sets the moving statistics of every replica to the mean over all.

    Moving statistics are linear in the statistics of the batches, so their mean after any number of steps is what the
    mean in each step would have led to.
    """

    def replica_step() -> None:
        replica = tf.distribute.get_replica_context()
        for each in find_moving_statistics(model):
            mean = replica.all_reduce(tf.distribute.ReduceOp.MEAN, tf.identity(each.value))
            tf.raw_ops.AssignVariableOp(resource=each.value.handle, value=mean)

    def average() -> None:
        strategy.run(replica_step)

    return tf.function(average) if find_moving_statistics(model) else lambda: None
