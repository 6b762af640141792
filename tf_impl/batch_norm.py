"""BatchNorm over several replicas: the statistics of each replica's shard, or of the global batch.

A batch that is too small for all replicas is filled up with padding rows, which must not count in the statistics. The
other rows, which belong to examples, are called real.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import local
from typing import TYPE_CHECKING

import keras
import tensorflow as tf

from common.errors import UserError
from common.map.keras_classes import find_keras_class
from common.map.keras_paths import variables_by_path
from tf_impl.changing_buffers import build_averaging, find_changing_buffers
from tf_impl.keras_two import replace_class
from tf_impl.layer_attributes import get_layer_kind

if TYPE_CHECKING:
    from keras.layers import BatchNormalization
else:
    BatchNormalization = object  # `replace_class` adds the class of the layer's own Keras

STATISTICS = ("moving_mean", "moving_variance")
_current = local()  # `real_rows`; TensorFlow traces each replica in a thread of its own


def find_moving_statistics(model: keras.Model) -> list[keras.Variable]:
    """Return the moving means and variances of all BatchNorm layers."""
    changing = {id(variable) for variable in find_changing_buffers(model).values()}
    return [
        variable
        for variable in model.non_trainable_variables
        if variable.name in STATISTICS and id(variable) not in changing
    ]


def list_batch_norm_buffers(model: keras.Layer) -> list[str]:
    """Return the paths of the moving means and variances of BatchNorm layers."""
    layers = [layer for layer in model._flatten_layers() if get_layer_kind(layer) == "BatchNormalization"]
    statistics = {id(variable) for layer in layers for variable in layer._non_trainable_variables}
    return [path for path, variable in variables_by_path(model).items() if id(variable) in statistics]


class AlignedBatchNorm(BatchNormalization):
    """The call of a BatchNorm with PyTorch's moving variance, which averages the unbiased variance of the batches.

    If `synchronized` is set, the mean and variance are computed over the examples of all replicas. Values that a mask
    leaves out do not count, as in Keras's layer.
    """

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: tf.Tensor | None = None) -> tf.Tensor:
        """Normalize the inputs, and update the moving statistics in training."""
        if not (training and self.trainable):
            return super().call(inputs, training=False)
        x = tf.cast(inputs, self.moving_mean.dtype)
        axes = [axis for axis in range(x.shape.rank) if axis != self._get_channel_axis(x)]
        real = self._broadcast_real_rows(x)
        if mask is not None:
            real *= tf.cast(mask[(..., *[tf.newaxis] * (x.shape.rank - mask.shape.rank))], x.dtype)
        # Each entry of `real` stands for this many values of a channel.
        values_per_position = tf.cast(tf.size(x) // tf.size(real) // tf.shape(x)[self._get_channel_axis(x)], x.dtype)
        # The sum of each channel, then the number of values in each channel, in one tensor for one all-reduce.
        local_sums = tf.concat((tf.reduce_sum(x * real, axes), [tf.reduce_sum(real) * values_per_position]), 0)
        sums = self._sum_over_replicas(local_sums)
        count = sums[-1]
        mean = sums[:-1] / count
        centred = x - self._broadcast_channels(mean, x)
        variance = self._sum_over_replicas(tf.reduce_sum(tf.square(centred) * real, axes)) / count
        self._update_moving_statistic(self.moving_mean, mean)
        unbiased = variance * (count / (count - 1))
        self._update_moving_statistic(self.moving_variance, unbiased)
        x = centred * self._broadcast_channels(tf.math.rsqrt(variance + self.epsilon), x)
        if self.scale:
            x *= self._broadcast_channels(self.gamma, x)
        if self.center:
            x += self._broadcast_channels(self.beta, x)
        return tf.cast(x, self.compute_dtype)

    def _broadcast_real_rows(self, x: tf.Tensor) -> tf.Tensor:
        """Return 1 for each row of x that belongs to an example and 0 for padding, in a shape that broadcasts to x."""
        real = getattr(_current, "real_rows", None)
        if real is None:
            real = tf.ones(tf.shape(x)[:1], x.dtype)
        real = tf.repeat(tf.cast(real, x.dtype), tf.shape(x)[0] // tf.shape(real)[0])
        return tf.reshape(real, [-1, *[1] * (x.shape.rank - 1)])

    def _sum_over_replicas(self, x: tf.Tensor) -> tf.Tensor:
        if not self.synchronized:
            return x
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, x)

    def _broadcast_channels(self, values: tf.Tensor | keras.Variable, x: tf.Tensor) -> tf.Tensor:
        """Return one value for each channel in a shape that broadcasts to x."""
        shape = [1] * x.shape.rank
        shape[self._get_channel_axis(x)] = -1
        return tf.reshape(tf.convert_to_tensor(values), shape)

    def _get_channel_axis(self, x: tf.Tensor) -> int:
        (axis,) = [self.axis] if isinstance(self.axis, int) else self.axis  # a list in Keras 2
        return axis % x.shape.rank

    def _update_moving_statistic(self, variable: keras.Variable, value: tf.Tensor) -> None:
        """Update only this replica's copy of a statistic. `build_statistics_averaging` averages the copies."""
        updated = tf.convert_to_tensor(variable) * self.momentum + value * (1 - self.momentum)
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.stop_gradient(updated))


def synchronize_batch_norm(model: keras.Layer, over_replicas: bool) -> None:
    """Make the BatchNorm layers of a model compute what PyTorch's do.

    Args:
        model: The model.
        over_replicas: Whether to use the statistics of all replicas instead of each replica's shard.

    Raises:
        UserError: A layer overrides `call`, and so would not use the statistics of all replicas.
    """
    for layer in model._flatten_layers():
        kind = find_keras_class(layer, "BatchNormalization")
        if kind is None or isinstance(layer, AlignedBatchNorm):
            continue
        if over_replicas and type(layer).call is not kind.call:
            raise UserError(
                f"model.sync_batch_norm=true: layer {layer.path} ({type(layer).__name__}) is a BatchNormalization with "
                "a call of its own, which would be replaced; use keras.layers' own class, or set it to false"
            )
        if type(layer).call is kind.call:
            replace_class(layer, AlignedBatchNorm, kind)
            layer.synchronized = over_replicas


@contextmanager
def use_real_rows(real_rows: tf.Tensor | None) -> Iterator[None]:
    """Exclude padding rows of the batch computed in the context from the statistics of aligned BatchNorm layers.

    Args:
        real_rows: int32 [n], 1 for an example and 0 for padding; None if there is no padding. A layer may receive
            several consecutive rows for each example.
    """
    _current.real_rows = real_rows
    try:
        yield
    finally:
        _current.real_rows = None


def build_statistics_averaging(strategy: tf.distribute.Strategy, model: keras.Model) -> Callable[[], None]:
    """Return a function that sets the moving statistics of every replica to their mean over all replicas.

    It is enough to average before the statistics are read. Moving statistics are linear in the statistics of the
    batches, so averaging once has the same result as averaging after every step.
    """
    return build_averaging(strategy, find_moving_statistics(model))
