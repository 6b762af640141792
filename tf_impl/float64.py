"""Float64 computation throughout: Keras and TensorFlow round some constants to float32 even in float64 models.

Some models also cast to float32. KerasHub, for example, computes norms and the tables of rotary positions in float32.

This file replaces the functions that round:

- `tf.cast` converts a Python float to float32 first. `keras.ops.gelu` and the scale of MultiHeadAttention use it.
- The operation behind `tf.nn.leaky_relu` has a float32 attribute.
- `keras.ops.dot_product_attention` computes its scale in float32.
- `tf.constant`, `tf.eye`, `tf.ones`, `tf.range` and `tf.zeros` are float32 unless the caller says otherwise. KerasHub's
  Qwen3.5 says float32 for a state that it adds to tensors that it casts to float32.
- `tf.convert_to_tensor` too. Keras 2 converts the momentum of a BatchNormalization with it.
- `tf.image.resize`, which also computes `UpSampling2D`, interpolates in float32.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

import keras
import tensorflow as tf
import tensorflow.compat.v2 as tensorflow_v2
from keras.src.backend.tensorflow import nn
from tensorflow.python.ops import math_ops

from tf_impl.keras_two import TENSORFLOW_MODULES

TensorLike: TypeAlias = tf.Tensor | keras.Variable | float | list[float]  # what TensorFlow converts to a tensor

ATTENTION = getattr(nn, "dot_product_attention", None)  # Keras 3.3 has none
WIDER_TYPES = {tf.float32: tf.float64, tf.complex64: tf.complex128}
CONSTANT_FUNCTIONS = ("constant", "eye", "ones", "range", "zeros")

_keeps_float64 = ContextVar("_keeps_float64", default=False)


def compute_in_float64() -> None:
    """Make new layers and constants float64 for the rest of this process."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    if tf.cast is not _cast:  # not replaced yet
        math_ops.cast = _cast
        if ATTENTION is not None:
            nn.dot_product_attention = _dot_product_attention
        constants = {name: _make_constant_function(getattr(tf, name)) for name in CONSTANT_FUNCTIONS}
        for module in TENSORFLOW_MODULES:
            vars(module).update(cast=_cast, **constants)
            module.nn.leaky_relu = _leaky_relu
            module.image.resize = _resize
        tensorflow_v2.convert_to_tensor = _make_constant_function(tensorflow_v2.convert_to_tensor)
        keras.DTypePolicy._parse_name = _parse_policy_name


@contextmanager
def keep_float64() -> Iterator[None]:
    """Make casts to float32 and float32 layers in the code of a float64 model float64, within the `with` block.

    Casts to complex64, which a Fourier transform needs, become casts to complex128.
    """
    token = _keeps_float64.set(True)
    try:
        yield
    finally:
        _keeps_float64.reset(token)


def _cast(
    x: TensorLike, dtype: tf.DType | str, name: str | None = None, _original: Callable[..., tf.Tensor] = tf.cast
) -> tf.Tensor:
    target = tf.as_dtype(dtype)
    if _keeps_float64.get() and target in WIDER_TYPES:
        dtype = target = WIDER_TYPES[target]
    if type(x) is float and (target.is_floating or target.is_complex):
        return tf.convert_to_tensor(x, target)
    return _original(x, dtype, name)


def _make_constant_function(original: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Return a function that makes a float64 constant in a float64 model's code instead of a float32 one.

    A complex128 constant replaces a complex64 one.
    """
    signature = inspect.signature(original)

    def make_constant(*args: object, **kwargs: object) -> tf.Tensor:
        constant = original(*args, **kwargs)
        arguments = signature.bind(*args, **kwargs).arguments
        if constant.dtype not in WIDER_TYPES or not _keeps_float64.get():
            return constant
        dtype = WIDER_TYPES[constant.dtype]
        if isinstance(arguments.get("value"), tf.Tensor):
            return tf.cast(constant, dtype)
        return original(**{**arguments, "dtype": dtype})

    return make_constant


def _parse_policy_name(
    self: keras.DTypePolicy,
    name: str,
    _original: Callable[[keras.DTypePolicy, str], tuple[str, str]] = keras.DTypePolicy._parse_name,
) -> tuple[str, str]:
    return _original(self, "float64" if _keeps_float64.get() and name == "float32" else name)


def _leaky_relu(features: TensorLike, alpha: TensorLike = 0.2, name: str | None = None) -> tf.Tensor:
    features = tf.convert_to_tensor(features)
    return tf.where(features > 0, features, features * tf.convert_to_tensor(alpha, features.dtype))


def _resize(
    images: TensorLike,
    size: tf.Tensor | Sequence[int],
    method: str = "bilinear",
    preserve_aspect_ratio: bool = False,
    antialias: bool = False,
    name: str | None = None,
    _original: Callable[..., tf.Tensor] = tf.image.resize,
) -> tf.Tensor:
    images = tf.convert_to_tensor(images)
    if images.dtype != tf.float64 or method != "bilinear" or preserve_aspect_ratio or antialias:
        return _original(images, size, method, preserve_aspect_ratio, antialias, name)
    return _interpolate(_interpolate(images, size[0], axis=-3), size[1], axis=-2)


def _interpolate(images: tf.Tensor, size: int | tf.Tensor, axis: int) -> tf.Tensor:
    """Interpolate images [..., height, width, channels] linearly along an axis. The first pixel's centre is at 0.5."""
    count = tf.shape(images)[axis]
    centres = tf.cast(tf.range(size), tf.float64) + 0.5
    places = tf.clip_by_value(
        centres * (tf.cast(count, tf.float64) / tf.cast(size, tf.float64)) - 0.5, 0, tf.cast(count - 1, tf.float64)
    )
    first = tf.cast(tf.floor(places), tf.int32)
    share = tf.reshape(places - tf.floor(places), [-1, *[1] * (-axis - 1)])
    second = tf.gather(images, tf.minimum(first + 1, count - 1), axis=axis)
    return tf.gather(images, first, axis=axis) * (1 - share) + second * share


def _dot_product_attention(
    query: tf.Tensor,
    *args: object,
    scale: float | None = None,
    _original: Callable[..., tf.Tensor] | None = ATTENTION,
    **kwargs: object,
) -> tf.Tensor:
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    assert _original is not None
    return _original(query, *args, scale=scale, **kwargs)
