"""Corrections of convolutions that TensorFlow 2.21 cannot compute well on a CPU.

The backward pass of 1x1 convolutions with strides can crash.
oneDNN's gradient of the kernel writes past its buffer if the inputs have fewer than 16 channels
(https://github.com/uxlfoundation/oneDNN/issues/6035). Before the convolution, the correction removes the inputs that
the strides skip. The convolution then needs no strides. Its values are the same, and its gradient is right.

Convolutions in groups have no gradient outside of XLA, and Keras compiles them again at each call. This module computes
them as depthwise convolutions, or one group after the other.
"""

from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow import nn


def patch_strided_convolutions() -> None:
    """Correct the convolutions of Keras's layers and operations for the rest of this process."""
    nn.conv = _convolve


def patch_grouped_convolutions() -> None:
    """Correct the strided convolutions and those in groups for the rest of this process, which computes eagerly."""
    nn.conv = _convolve_groups


def _convolve(
    inputs: tf.Tensor,
    kernel: tf.Tensor,
    strides: int | Sequence[int] = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: int | Sequence[int] = 1,
    _original: Callable[..., tf.Tensor] = nn.conv,
) -> tf.Tensor:
    sizes = kernel.shape[:-2]  # sizes of the window; the last axes are inputs and outputs
    steps = [strides] * len(sizes) if isinstance(strides, int) else list(strides)
    if set(sizes) == {1} and max(steps) > 1:
        spatial = [slice(None, None, step) for step in steps]
        leading_axes = 2 if data_format == "channels_first" else 1  # examples, and channels if they come first
        inputs = inputs[(*[slice(None)] * leading_axes, *spatial)]
        strides = 1
    return _original(inputs, kernel, strides, padding, data_format, dilation_rate)


def _convolve_groups(
    inputs: tf.Tensor,
    kernel: tf.Tensor,
    strides: int | Sequence[int] = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: int | Sequence[int] = 1,
) -> tf.Tensor:
    settings = strides, padding, "channels_last", dilation_rate
    layout = keras.config.image_data_format() if data_format is None else data_format
    group_count = inputs.shape[1 if layout == "channels_first" else -1] // kernel.shape[-2]
    if group_count == 1:
        return _convolve(inputs, kernel, strides, padding, data_format, dilation_rate)
    if layout == "channels_first":
        last = tf.transpose(inputs, [0, *range(2, len(inputs.shape)), 1])
        outputs = _convolve_groups(last, kernel, *settings)
        return tf.transpose(outputs, [0, len(inputs.shape) - 1, *range(1, len(inputs.shape) - 1)])
    steps, rates = (tuple(np.broadcast_to(value, len(kernel.shape) - 2).tolist()) for value in (strides, dilation_rate))
    # TensorFlow's depthwise convolution takes images only, with equal strides, and not both strides and dilations.
    if kernel.shape[-2] == 1 and len(steps) == 2 and steps[0] == steps[1] and 1 in (max(steps), max(rates)):
        depthwise = tf.reshape(kernel, [*kernel.shape[:2], group_count, -1])
        return tf.nn.depthwise_conv2d(inputs, depthwise, [1, *steps, 1], padding.upper(), dilations=rates)
    groups = zip(tf.split(inputs, group_count, axis=-1), tf.split(kernel, group_count, axis=-1), strict=True)
    return tf.concat([_convolve(group_inputs, group_kernel, *settings) for group_inputs, group_kernel in groups], -1)
