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
from tf_impl.communication.mirrored_sums import sum_over_replicas
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


@tf.custom_gradient
def _compute_local_moments(x: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable[..., tf.Tensor]]:
    """Return the number of values in a channel of x [..., channels], and the mean and variance of each channel."""
    axes = list(range(x.shape.rank - 1))
    count = tf.cast(tf.size(x) // x.shape[-1], x.dtype)
    mean = tf.reduce_sum(x, axes) / count
    variance = tf.reduce_sum(tf.math.squared_difference(x, mean), axes) / count

    def compute_gradient(of_count: tf.Tensor, of_mean: tf.Tensor, of_variance: tf.Tensor) -> tf.Tensor:
        slope = 2 * of_variance / count
        return x * slope + (of_mean / count - slope * mean)

    return (count, mean, variance), compute_gradient


def _normalize(
    x: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float
) -> tf.Tensor:
    """Return gamma * (x - mean) / sqrt(variance + epsilon) + beta for x [..., channels] and given statistics.

    TensorFlow's own operation has no gradients of the statistics.
    """
    settings = {"epsilon": epsilon, "is_training": False}

    @tf.custom_gradient
    def compute(
        x: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[..., tuple[tf.Tensor, ...]]]:
        y, *_ = tf.raw_ops.FusedBatchNormV3(x=x, scale=gamma, offset=beta, mean=mean, variance=variance, **settings)

        def compute_gradients(of_y: tf.Tensor) -> tuple[tf.Tensor, ...]:
            statistics = {"reserve_space_1": mean, "reserve_space_2": variance, "reserve_space_3": []}
            of_x, of_gamma, of_beta, *_ = tf.raw_ops.FusedBatchNormGradV3(
                y_backprop=of_y, x=x, scale=gamma, **statistics, **settings
            )
            inverse_deviation = tf.math.rsqrt(variance + epsilon)
            of_mean = -of_beta * gamma * inverse_deviation
            of_variance = -0.5 * of_gamma * gamma * tf.square(inverse_deviation)
            return of_x, of_mean, of_variance, of_gamma, of_beta

        return y, compute_gradients

    images = tf.reshape(x, [-1, 1, 1, x.shape[-1]])
    return tf.reshape(compute(images, mean, variance, gamma, beta), tf.shape(x))


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
        mean, variance, unbiased = self._compute_moments(x, mask)
        self._update_moving_statistic(self.moving_mean, mean)
        self._update_moving_statistic(self.moving_variance, unbiased)
        gamma = tf.convert_to_tensor(self.gamma) if self.scale else tf.ones_like(mean)
        beta = tf.convert_to_tensor(self.beta) if self.center else tf.zeros_like(mean)
        if self._is_fusable(x):
            return tf.cast(_normalize(x, mean, variance, gamma, beta, self.epsilon), self.compute_dtype)
        factor = self._broadcast_channels(gamma * tf.math.rsqrt(variance + self.epsilon), x)
        centred = x - self._broadcast_channels(mean, x)
        return tf.cast(centred * factor + self._broadcast_channels(beta, x), self.compute_dtype)

    def _compute_moments(self, x: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the mean, the variance and the unbiased variance of each channel, of real values only."""
        if mask is None and getattr(_current, "real_rows", None) is None and self._is_fusable(x):
            local_count, local_mean, local_variance = _compute_local_moments(x)
        else:
            local_count, local_mean, local_variance = self._compute_real_moments(x, mask)
        # The sum of each channel, then the number of values in each channel, in one tensor for one all-reduce.
        sums = self._sum_over_replicas(tf.concat((local_mean * local_count, [local_count]), 0))
        count = sums[-1]
        mean = sums[:-1] / count
        # The squared deviations from the mean of all replicas, from those from the mean of this replica.
        squares = local_count * (local_variance + tf.square(local_mean - mean))
        variance = self._sum_over_replicas(squares) / count
        return mean, variance, variance * (count / (count - 1))

    def _compute_real_moments(self, x: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the number of real values in a channel, and the mean and the variance of each channel."""
        axes = [axis for axis in range(x.shape.rank) if axis != self._get_channel_axis(x)]
        real = self._broadcast_real_rows(x)
        if mask is not None:
            real *= tf.cast(mask[(..., *[tf.newaxis] * (x.shape.rank - mask.shape.rank))], x.dtype)
        # Each entry of `real` stands for this many values of a channel.
        values_per_position = tf.cast(tf.size(x) // tf.size(real) // tf.shape(x)[self._get_channel_axis(x)], x.dtype)
        count = tf.reduce_sum(real) * values_per_position
        divisor = tf.maximum(count, 1)
        mean = tf.reduce_sum(x * real, axes) / divisor
        squares = tf.square(x - self._broadcast_channels(mean, x)) * real
        return count, mean, tf.reduce_sum(squares, axes) / divisor

    def _is_fusable(self, x: tf.Tensor) -> bool:
        """Check whether TensorFlow has fast operations for the layer: float32, channels last, on a CPU.

        On a GPU they refuse the epsilon of PyTorch.
        """
        is_supported = x.dtype == tf.float32 and self._get_channel_axis(x) == x.shape.rank - 1
        return is_supported and not tf.config.get_visible_devices("GPU")

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

        @tf.custom_gradient
        def compute(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            return sum_over_replicas([x])[0], lambda of_sum: sum_over_replicas([of_sum])[0]

        return compute(x)

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

    Averaging before the statistics are read suffices: moving statistics are linear in the statistics of the batches, so
    averaging once has the same result as averaging after every step.
    """
    return build_averaging(strategy, find_moving_statistics(model))
