"""Dropout with the masks that common/data/dropout.py defines."""

import tensorflow as tf

from common.data.dropout import FIRST, INCREMENT, ROW_SHIFTS, SECOND, STRIDE, threshold

Tokens = tuple[tf.Tensor, tf.Tensor]  # of each token: the index of its example and its position, [t]


def drop(x: tf.Tensor, rate: float, rows: tf.Tensor) -> tf.Tensor:
    """x [..., features] without the elements that are dropped, the others over 1 - rate. rows: int64 [...]."""
    return keep(x, rate, kept(rows, tf.shape(x)[-1], rate))


def keep(x: tf.Tensor, rate: float, mask: tf.Tensor) -> tf.Tensor:
    """x over 1 - rate where the mask is true, else 0."""
    wide = tf.float64 if x.dtype == tf.float64 else tf.float32  # in bfloat16 the factor would be up to 0.4 % off
    factors = tf.cast(mask, wide) * tf.constant(1 / (1 - rate), wide)
    return tf.cast(tf.cast(x, wide) * factors, x.dtype)


def kept(rows: tf.Tensor, features: tf.Tensor, rate: float) -> tf.Tensor:
    """Which elements of these rows are not dropped, bool [..., features]."""
    words = tf.bitcast(rows, tf.int32)
    x = tf.range(features) * STRIDE + words[..., 1:]
    x = x * FIRST
    x = ((x ^ (tf.bitwise.right_shift(x, 15) & 0x1FFFF)) + words[..., :1]) * SECOND
    x = (x ^ (tf.bitwise.right_shift(x, 14) & 0x3FFFF)) * FIRST
    return x >= threshold(rate)


def rows_of(keys: tf.Tensor, site: tf.Tensor, shape: list[tf.Tensor]) -> tf.Tensor:
    """The rows of a layer's input [n, *shape, features], int64 [n, *shape]. keys: of its examples, int64 [n]."""
    rows = _mixed(keys ^ site)
    for size in shape:
        rows = _mixed(rows[..., None] + tf.range(1, tf.cast(size, tf.int64) + 1))
    return rows


def rows_of_tokens(keys: tf.Tensor, site: tf.Tensor, tokens: Tokens) -> tf.Tensor:
    """The rows of a layer's input [t, features], int64 [t]: those that the tokens have in [n, positions, features]."""
    examples, positions = tokens
    return _mixed(tf.gather(_mixed(keys ^ site), examples) + tf.cast(positions + 1, tf.int64))


def _mixed(x: tf.Tensor) -> tf.Tensor:
    x = x + INCREMENT
    for shift, factor in ROW_SHIFTS:
        x = (x ^ (tf.bitwise.right_shift(x, tf.constant(shift, tf.int64)) & ((1 << (64 - shift)) - 1))) * factor
    return x
