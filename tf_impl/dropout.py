"""Dropout with the masks that common/data/dropout.py defines, equal on both sides.

Each example has a key, and each dropout layer has a site key. Both keys and the coordinates of a row, which is all
elements along the last axis, are hashed to the key of the row. The key of the row and the position of an element in the
row decide whether the element is dropped. All keys are int64; overflow wraps around.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import local

import keras
import tensorflow as tf
from keras.layers import Dropout, SpatialDropout2D
from typing_extensions import override

from common.data.dropout import (
    COLUMN_STRIDE,
    FIRST_MULTIPLIER,
    ROW_SHIFTS,
    SECOND_MULTIPLIER,
    SPLITMIX_INCREMENT,
    compute_threshold,
    derive_site_key,
)
from common.map.dropout_pairs import ChannelLayout
from tf_impl.keras_paths import make_unique

TokenPositions = tuple[tf.Tensor, tf.Tensor]  # for each token: the index of its example, and its position, [t]


def apply_dropout(x: tf.Tensor, rate: float, row_keys: tf.Tensor) -> tf.Tensor:
    """Drop elements of x [..., features] and divide the others by 1 - rate.

    Args:
        x: The input of a dropout layer.
        rate: The probability with which an element is dropped.
        row_keys: The key of each row of x, int64 [...].
    """
    return apply_mask(x, rate, compute_mask(row_keys, tf.shape(x)[-1], rate))


def apply_mask(x: tf.Tensor, rate: float, mask: tf.Tensor) -> tf.Tensor:
    """Return x / (1 - rate) for elements whose mask is true, and 0 for the others."""
    wide = tf.float64 if x.dtype == tf.float64 else tf.float32  # bfloat16 would round the factor by up to 0.4 %
    factors = tf.cast(mask, wide) * tf.constant(1 / (1 - rate), wide)
    return tf.cast(tf.cast(x, wide) * factors, x.dtype)


def compute_mask(row_keys: tf.Tensor, features: tf.Tensor, rate: float) -> tf.Tensor:
    """Return the mask of elements that are not dropped, bool [..., features], from the keys of their rows."""
    words = tf.bitcast(row_keys, tf.int32)  # low and high 32 bits of each key, [..., 2]
    x = tf.range(features) * COLUMN_STRIDE + words[..., 1:]
    x = x * FIRST_MULTIPLIER
    x = ((x ^ (tf.bitwise.right_shift(x, 15) & 0x1FFFF)) + words[..., :1]) * SECOND_MULTIPLIER
    x = (x ^ (tf.bitwise.right_shift(x, 14) & 0x3FFFF)) * FIRST_MULTIPLIER
    return x >= compute_threshold(rate)


def hash_rows(example_keys: tf.Tensor, site_key: tf.Tensor, shape: Sequence[tf.Tensor | int]) -> tf.Tensor:
    """Return the keys of the rows of a layer's input [n, *shape, features].

    Args:
        example_keys: The keys of the examples, int64 [n].
        site_key: The key of the dropout layer, int64.
        shape: The axes between the examples and the features.

    Returns:
        int64 [n, *shape]
    """
    row_keys = _mix(example_keys ^ site_key)
    for size in shape:
        row_keys = _mix(row_keys[..., None] + tf.range(1, tf.cast(size, tf.int64) + 1))
    return row_keys


def hash_token_rows(example_keys: tf.Tensor, site_key: tf.Tensor, tokens: TokenPositions) -> tf.Tensor:
    """Return the keys, int64 [t], of the rows of unpadded tokens [t, features].

    They are the keys that `hash_rows` returns for the same tokens in a padded input [n, positions, features].
    """
    examples, positions = tokens
    return _mix(tf.gather(_mix(example_keys ^ site_key), examples) + tf.cast(positions + 1, tf.int64))


def _mix(x: tf.Tensor) -> tf.Tensor:
    """Apply one step of SplitMix64, an invertible hash, to int64 words."""
    x = x + SPLITMIX_INCREMENT
    for shift, factor in ROW_SHIFTS:
        x = (x ^ (tf.bitwise.right_shift(x, tf.constant(shift, tf.int64)) & ((1 << (64 - shift)) - 1))) * factor
    return x


class AlignedDropout(Dropout):
    """Dropout with masks drawn from the examples' keys, which `use_dropout_keys` sets.

    Attributes:
        site_key: The key of this layer.
        layout: How the counterpart in PyTorch's model receives the same elements, if in another order than this layer.
    """

    site_key: int
    layout: ChannelLayout | None

    @override
    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        if not training:
            return inputs
        if self.layout is None:
            return apply_dropout(
                inputs,
                self.rate,
                hash_rows(_get_example_keys(), _get_site_key(self), tf.unstack(tf.shape(inputs)[1:-1])),
            )
        mask = self._compute_mask(self.layout, tf.shape(inputs))
        return apply_mask(inputs, self.rate, tf.reshape(mask, tf.shape(inputs)))

    def _compute_mask(self, layout: ChannelLayout, shape: tf.Tensor) -> tf.Tensor:
        """Compute the mask of PyTorch's input, and move its channels from the first place to the last."""
        # Shapes of one example: as PyTorch's layer receives it, and before PyTorch flattened it.
        received, channels_first = layout.received, layout.channels_first
        if received == channels_first and shape.shape[0] == len(received) + 1:
            received = channels_first = (shape[-1], *tf.unstack(shape[1:-1]))  # images of any size
        mask = compute_mask(hash_rows(_get_example_keys(), _get_site_key(self), received[:-1]), received[-1], self.rate)
        return tf.experimental.numpy.moveaxis(tf.reshape(mask, [-1, *channels_first]), 1, -1)


class AlignedDropout2d(SpatialDropout2D):
    """Dropout of whole channels, for x [n, height, width, channels]."""

    site_key: int  # the key of this layer

    @override
    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        if not training:
            return inputs
        mask = compute_mask(hash_rows(_get_example_keys(), _get_site_key(self), []), tf.shape(inputs)[-1], self.rate)
        return apply_mask(inputs, self.rate, mask[:, None, None])


ALIGNED_CLASSES = {Dropout: AlignedDropout, SpatialDropout2D: AlignedDropout2d}  # what replaces each class of Keras
_current = local()  # each replica is traced in its own thread


def find_dropout_layers(model: keras.Layer) -> dict[str, keras.Layer]:
    """Return the dropout layers of a model that can be aligned, by unique path."""
    layers: dict[str, keras.Layer] = {}
    for layer in model._flatten_layers():
        if type(layer) in ALIGNED_CLASSES and getattr(layer, "noise_shape", None) is None:
            layers[make_unique(layer.path or layer.name, layers)] = layer
    return layers


def align_dropout(layer: keras.Layer, name: str, layout: ChannelLayout | None) -> None:
    """Make a dropout layer draw its masks from the examples' keys.

    Args:
        layer: A layer of `find_dropout_layers`.
        name: The name of its counterpart in PyTorch's model.
        layout: The layout of the counterpart's input, if it differs from the layer's own.
    """
    layer.__class__ = ALIGNED_CLASSES[type(layer)]
    layer.site_key, layer.layout = derive_site_key(name), layout


@contextmanager
def use_dropout_keys(example_keys: tf.Tensor | None) -> Iterator[None]:
    """Set the keys, int64 [n], of the examples that a model computes within the context; may be None in evaluation."""
    _current.example_keys = example_keys
    try:
        yield
    finally:
        _current.example_keys = None


def _get_example_keys() -> tf.Tensor:
    assert _current.example_keys is not None, "the model must be called within use_dropout_keys"
    return _current.example_keys


def _get_site_key(layer: AlignedDropout | AlignedDropout2d) -> tf.Tensor:
    return tf.constant(layer.site_key, tf.int64)
