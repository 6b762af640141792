"""Convolutions of size 1 with strides, whose backward pass can crash TensorFlow on a CPU.

oneDNN's gradient of their kernel writes past its buffer where the inputs have fewer than 16 channels
(https://github.com/uxlfoundation/oneDNN/issues/6035, in TensorFlow 2.21). The inputs that the strides skip are left out
before the convolution instead: the same values, and the gradient is right.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow import nn


def patch_strided_convolutions() -> None:
    """From now on, in this process, in Keras's layers and operations."""
    nn.conv = _conv


def _conv(
    inputs: tf.Tensor,
    kernel: tf.Tensor,
    strides: int | Sequence[int] = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: int | Sequence[int] = 1,
    _original: Any = nn.conv,
) -> tf.Tensor:
    sizes = kernel.shape[:-2]
    steps = [strides] * len(sizes) if isinstance(strides, int) else list(strides)
    if set(sizes) == {1} and max(steps) > 1:
        spatial = [slice(None, None, step) for step in steps]
        first = data_format == "channels_first"
        inputs = inputs[(slice(None), slice(None), *spatial) if first else (slice(None), *spatial)]
        strides = 1
    return _original(inputs, kernel, strides, padding, data_format, dilation_rate)
