"""Float64 computation throughout: Keras and TensorFlow round some constants to float32 even in float64 models.

This file replaces the functions that do:

- `tf.cast` converts a Python float to float32 first. `keras.ops.gelu` and the scale of MultiHeadAttention use it.
- The operation behind `tf.nn.leaky_relu` has a float32 attribute.
- `keras.ops.dot_product_attention` computes its scale in float32.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import nn
from tensorflow.python.ops import math_ops

TensorLike: TypeAlias = tf.Tensor | keras.Variable | float | list[float]  # what TensorFlow converts to a tensor


def compute_in_float64() -> None:
    """Make new layers and constants float64 for the rest of this process."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    if tf.cast is not _cast:  # not replaced yet
        tf.cast = math_ops.cast = _cast
        tf.nn.leaky_relu = _leaky_relu
        nn.dot_product_attention = _dot_product_attention


def _cast(
    x: TensorLike, dtype: tf.DType | str, name: str | None = None, _original: Callable[..., tf.Tensor] = tf.cast
) -> tf.Tensor:
    target = tf.as_dtype(dtype)
    if type(x) is float and (target.is_floating or target.is_complex):
        return tf.convert_to_tensor(x, target)
    return _original(x, dtype, name)


def _leaky_relu(features: TensorLike, alpha: TensorLike = 0.2, name: str | None = None) -> tf.Tensor:
    features = tf.convert_to_tensor(features)
    return tf.where(features > 0, features, features * tf.convert_to_tensor(alpha, features.dtype))


def _dot_product_attention(
    query: tf.Tensor,
    *args: object,
    scale: float | None = None,
    _original: Callable[..., tf.Tensor] = nn.dot_product_attention,
    **kwargs: object,
) -> tf.Tensor:
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    return _original(query, *args, scale=scale, **kwargs)
