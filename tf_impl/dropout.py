"""Dropout with the masks that common/data/dropout.py defines."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local
from typing import Any

import keras
import tensorflow as tf
from keras.layers import Dropout, SpatialDropout2D

from common.data.dropout import (
    COLUMN_STRIDE,
    FIRST_MULTIPLIER,
    ROW_SHIFTS,
    SECOND_MULTIPLIER,
    SPLITMIX_INCREMENT,
    compute_threshold,
    derive_site_key,
)
from tf_impl.keras_paths import make_unique

TokenPositions = tuple[tf.Tensor, tf.Tensor]  # of each token: the index of its example and its position, [t]


def apply_dropout(x: tf.Tensor, rate: float, rows: tf.Tensor) -> tf.Tensor:
    """x [..., features] without the elements that are dropped, the others over 1 - rate. rows: int64 [...]."""
    return apply_mask(x, rate, compute_mask(rows, tf.shape(x)[-1], rate))


def apply_mask(x: tf.Tensor, rate: float, mask: tf.Tensor) -> tf.Tensor:
    """x over 1 - rate where the mask is true, else 0."""
    wide = tf.float64 if x.dtype == tf.float64 else tf.float32  # in bfloat16 the factor would be up to 0.4 % off
    factors = tf.cast(mask, wide) * tf.constant(1 / (1 - rate), wide)
    return tf.cast(tf.cast(x, wide) * factors, x.dtype)


def compute_mask(rows: tf.Tensor, features: tf.Tensor, rate: float) -> tf.Tensor:
    """Which elements of these rows are not dropped, bool [..., features]."""
    words = tf.bitcast(rows, tf.int32)
    x = tf.range(features) * COLUMN_STRIDE + words[..., 1:]
    x = x * FIRST_MULTIPLIER
    x = ((x ^ (tf.bitwise.right_shift(x, 15) & 0x1FFFF)) + words[..., :1]) * SECOND_MULTIPLIER
    x = (x ^ (tf.bitwise.right_shift(x, 14) & 0x3FFFF)) * FIRST_MULTIPLIER
    return x >= compute_threshold(rate)


def hash_rows(keys: tf.Tensor, site: tf.Tensor, shape: list[tf.Tensor]) -> tf.Tensor:
    """The rows of a layer's input [n, *shape, features], int64 [n, *shape]. keys: of its examples, int64 [n]."""
    rows = _mixed(keys ^ site)
    for size in shape:
        rows = _mixed(rows[..., None] + tf.range(1, tf.cast(size, tf.int64) + 1))
    return rows


def hash_token_rows(keys: tf.Tensor, site: tf.Tensor, tokens: TokenPositions) -> tf.Tensor:
    """The rows of a layer's input [t, features], int64 [t]: those that the tokens have in [n, positions, features]."""
    examples, positions = tokens
    return _mixed(tf.gather(_mixed(keys ^ site), examples) + tf.cast(positions + 1, tf.int64))


def _mixed(x: tf.Tensor) -> tf.Tensor:
    x = x + SPLITMIX_INCREMENT
    for shift, factor in ROW_SHIFTS:
        x = (x ^ (tf.bitwise.right_shift(x, tf.constant(shift, tf.int64)) & ((1 << (64 - shift)) - 1))) * factor
    return x


class AlignedDropout(Dropout):
    """Dropout by keys: see `use_dropout_keys`."""

    def call(self, inputs: tf.Tensor, training: bool = False) -> Any:
        if not training:
            return inputs
        if self.layout is None:
            return apply_dropout(inputs, self.rate, hash_rows(_keys(), _site(self), tf.unstack(tf.shape(inputs)[1:-1])))
        return apply_mask(inputs, self.rate, tf.reshape(self._mask(tf.shape(inputs)), tf.shape(inputs)))

    def _mask(self, shape: tf.Tensor) -> tf.Tensor:
        """That of PyTorch's input, with its channels moved from the first place to the last."""
        received, channels_first = self.layout["received"], self.layout["channels_first"]
        if received == channels_first and shape.shape[0] == len(received) + 1:
            received = channels_first = [shape[-1], *tf.unstack(shape[1:-1])]  # of any size
        mask = compute_mask(hash_rows(_keys(), _site(self), received[:-1]), received[-1], self.rate)
        return tf.experimental.numpy.moveaxis(tf.reshape(mask, [-1, *channels_first]), 1, -1)


class AlignedDropout2d(SpatialDropout2D):
    """Dropout of whole channels [n, height, width, channels]."""

    def call(self, inputs: tf.Tensor, training: bool = False) -> Any:
        if not training:
            return inputs
        mask = compute_mask(hash_rows(_keys(), _site(self), []), tf.shape(inputs)[-1], self.rate)
        return apply_mask(inputs, self.rate, mask[:, None, None])


ALIGNED = {Dropout: AlignedDropout, SpatialDropout2D: AlignedDropout2d}
_current = local()  # each replica is traced in a thread of its own


def find_dropout_layers(model: keras.Layer) -> dict[str, keras.Layer]:
    """The dropout layers of a model that can be aligned, by path; with a number where several have the same."""
    found: dict[str, keras.Layer] = {}
    for layer in model._flatten_layers():
        if type(layer) in ALIGNED and getattr(layer, "noise_shape", None) is None:
            path = layer.path or layer.name
            found[make_unique(path, found)] = layer
    return found


def align_dropout(layer: keras.Layer, name: str, layout: dict[str, Any] | None) -> None:
    """Have a dropout layer drop by keys. name: in PyTorch's model. layout: see common.map.dropouts."""
    layer.__class__ = ALIGNED[type(layer)]
    layer.site, layer.layout = derive_site_key(name), layout


@contextmanager
def use_dropout_keys(keys: tf.Tensor | None) -> Iterator[None]:
    """The keys of the examples that the model computes meanwhile, int64 [n]. In evaluation they may be None."""
    _current.keys = keys
    try:
        yield
    finally:
        _current.keys = None


def _keys() -> tf.Tensor:
    assert _current.keys is not None, "the model must be called within use_dropout_keys"
    return _current.keys


def _site(layer: Any) -> tf.Tensor:
    return tf.constant(layer.site, tf.int64)
