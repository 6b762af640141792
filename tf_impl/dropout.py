"""Dropout with the masks that common/data/dropout.py defines, equal on both sides."""

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


def apply_dropout(x: tf.Tensor, rate: float, rows: tf.Tensor) -> tf.Tensor:
    """Drop elements of x [..., features] and divide the others by 1 - rate.

    Args:
        x: The input of a dropout layer.
        rate: The probability with which an element is dropped.
        rows: The hash of each row of x, int64 [...].
    """
    return apply_mask(x, rate, compute_mask(rows, tf.shape(x)[-1], rate))


def apply_mask(x: tf.Tensor, rate: float, mask: tf.Tensor) -> tf.Tensor:
    """Return x / (1 - rate) for elements whose mask is true, and 0 for the others."""
    wide = tf.float64 if x.dtype == tf.float64 else tf.float32  # bfloat16 would round the factor by up to 0.4 %
    factors = tf.cast(mask, wide) * tf.constant(1 / (1 - rate), wide)
    return tf.cast(tf.cast(x, wide) * factors, x.dtype)


def compute_mask(rows: tf.Tensor, features: tf.Tensor, rate: float) -> tf.Tensor:
    """Return the mask of elements that are not dropped, bool [..., features], from the hashes of their rows."""
    words = tf.bitcast(rows, tf.int32)
    x = tf.range(features) * COLUMN_STRIDE + words[..., 1:]
    x = x * FIRST_MULTIPLIER
    x = ((x ^ (tf.bitwise.right_shift(x, 15) & 0x1FFFF)) + words[..., :1]) * SECOND_MULTIPLIER
    x = (x ^ (tf.bitwise.right_shift(x, 14) & 0x3FFFF)) * FIRST_MULTIPLIER
    return x >= compute_threshold(rate)


def hash_rows(keys: tf.Tensor, site: tf.Tensor, shape: Sequence[tf.Tensor | int]) -> tf.Tensor:
    """Hash the rows of a layer's input [n, *shape, features].

    Args:
        keys: The keys of the examples, int64 [n].
        site: The key of the dropout layer, int64.
        shape: The axes between the examples and the features.

    Returns:
        int64 [n, *shape]
    """
    rows = _mix(keys ^ site)
    for size in shape:
        rows = _mix(rows[..., None] + tf.range(1, tf.cast(size, tf.int64) + 1))
    return rows


def hash_token_rows(keys: tf.Tensor, site: tf.Tensor, tokens: TokenPositions) -> tf.Tensor:
    """Hash the rows of unpadded tokens [t, features] to int64 [t], as `hash_rows` does for [n, positions, features]."""
    examples, positions = tokens
    return _mix(tf.gather(_mix(keys ^ site), examples) + tf.cast(positions + 1, tf.int64))


def _mix(x: tf.Tensor) -> tf.Tensor:
    x = x + SPLITMIX_INCREMENT
    for shift, factor in ROW_SHIFTS:
        x = (x ^ (tf.bitwise.right_shift(x, tf.constant(shift, tf.int64)) & ((1 << (64 - shift)) - 1))) * factor
    return x


class AlignedDropout(Dropout):
    """Dropout with masks drawn from the examples' keys, which `use_dropout_keys` sets.

    Attributes:
        site: The key of this layer.
        layout: The layout of PyTorch's input, if it differs from Keras's.
    """

    site: int
    layout: ChannelLayout | None

    @override
    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        if not training:
            return inputs
        if self.layout is None:
            return apply_dropout(inputs, self.rate, hash_rows(_keys(), _site(self), tf.unstack(tf.shape(inputs)[1:-1])))
        mask = self._compute_mask(self.layout, tf.shape(inputs))
        return apply_mask(inputs, self.rate, tf.reshape(mask, tf.shape(inputs)))

    def _compute_mask(self, layout: ChannelLayout, shape: tf.Tensor) -> tf.Tensor:
        """Compute the mask of PyTorch's input, and move its channels from the first place to the last."""
        received, channels_first = layout.received, layout.channels_first
        if received == channels_first and shape.shape[0] == len(received) + 1:
            received = channels_first = (shape[-1], *tf.unstack(shape[1:-1]))  # images of any size
        mask = compute_mask(hash_rows(_keys(), _site(self), received[:-1]), received[-1], self.rate)
        return tf.experimental.numpy.moveaxis(tf.reshape(mask, [-1, *channels_first]), 1, -1)


class AlignedDropout2d(SpatialDropout2D):
    """Dropout of whole channels, for x [n, height, width, channels]."""

    site: int  # the key of this layer

    @override
    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        if not training:
            return inputs
        mask = compute_mask(hash_rows(_keys(), _site(self), []), tf.shape(inputs)[-1], self.rate)
        return apply_mask(inputs, self.rate, mask[:, None, None])


ALIGNED = {Dropout: AlignedDropout, SpatialDropout2D: AlignedDropout2d}
_current = local()  # each replica is traced in its own thread


def find_dropout_layers(model: keras.Layer) -> dict[str, keras.Layer]:
    """Return the dropout layers of a model that can be aligned, by unique path."""
    layers: dict[str, keras.Layer] = {}
    for layer in model._flatten_layers():
        if type(layer) in ALIGNED and getattr(layer, "noise_shape", None) is None:
            layers[make_unique(layer.path or layer.name, layers)] = layer
    return layers


def align_dropout(layer: keras.Layer, name: str, layout: ChannelLayout | None) -> None:
    """Make a dropout layer draw its masks from the examples' keys.

    Args:
        layer: A layer of `find_dropout_layers`.
        name: The name of its counterpart in PyTorch's model.
        layout: The layout of the counterpart's input, if it differs; `common.map.dropout_pairs` derives it.
    """
    layer.__class__ = ALIGNED[type(layer)]
    layer.site, layer.layout = derive_site_key(name), layout


@contextmanager
def use_dropout_keys(keys: tf.Tensor | None) -> Iterator[None]:
    """Set the keys of the examples, int64 [n], that a model computes in the context. They may be None in evaluation."""
    _current.keys = keys
    try:
        yield
    finally:
        _current.keys = None


def _keys() -> tf.Tensor:
    assert _current.keys is not None, "the model must be called within use_dropout_keys"
    return _current.keys


def _site(layer: AlignedDropout | AlignedDropout2d) -> tf.Tensor:
    return tf.constant(layer.site, tf.int64)
