"""Keras and TensorFlow in float64 throughout: they round some constants to float32 even there.

`tf.cast` turns a Python float into a float32 first: `ops.gelu` and the scale of MultiHeadAttention use it. The
attribute of the operation behind `tf.nn.leaky_relu` is a float32. `ops.dot_product_attention` computes its scale in
float32.
"""

import math
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import nn
from tensorflow.python.ops import math_ops


def compute_in_float64() -> None:
    """From now on, in this process: layers that are made are float64, and so are constants."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    if tf.cast is not _cast:
        tf.cast = math_ops.cast = _cast
        tf.nn.leaky_relu = _leaky_relu
        nn.dot_product_attention = _dot_product_attention


def _cast(x: Any, dtype: Any, name: str | None = None, _original: Any = tf.cast) -> Any:
    to = tf.as_dtype(dtype)
    if type(x) is float and (to.is_floating or to.is_complex):
        return tf.convert_to_tensor(x, to)
    return _original(x, dtype, name)


def _leaky_relu(features: Any, alpha: Any = 0.2, name: str | None = None) -> Any:
    features = tf.convert_to_tensor(features)
    return tf.where(features > 0, features, features * tf.convert_to_tensor(alpha, features.dtype))


def _dot_product_attention(
    query: Any, *args: Any, scale: Any = None, _original: Any = nn.dot_product_attention, **kwargs: Any
) -> Any:
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    return _original(query, *args, scale=scale, **kwargs)
