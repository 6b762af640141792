"""A correction of 1x1 convolutions with strides, whose backward pass can crash TensorFlow 2.21 on a CPU.

oneDNN's gradient of the kernel writes past its buffer if the inputs have fewer than 16 channels
(https://github.com/uxlfoundation/oneDNN/issues/6035). Before the convolution, the correction removes the inputs that
the strides skip. The convolution then needs no strides. Its values are the same, and its gradient is right.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf
from keras.src.backend.tensorflow import nn


def patch_strided_convolutions() -> None:
    """Correct the convolutions of Keras's layers and operations for the rest of this process."""
    nn.conv = _convolve


def _convolve(
    inputs: tf.Tensor,
    kernel: tf.Tensor,
    strides: int | Sequence[int] = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: int | Sequence[int] = 1,
    _original: Callable[..., tf.Tensor] = nn.conv,
) -> tf.Tensor:
    sizes = kernel.shape[:-2]  # of the window; the last axes are inputs and outputs
    steps = [strides] * len(sizes) if isinstance(strides, int) else list(strides)
    if set(sizes) == {1} and max(steps) > 1:
        spatial = [slice(None, None, step) for step in steps]
        leading_axes = 2 if data_format == "channels_first" else 1  # examples, and channels if they come first
        inputs = inputs[(*[slice(None)] * leading_axes, *spatial)]
        strides = 1
    return _original(inputs, kernel, strides, padding, data_format, dilation_rate)
