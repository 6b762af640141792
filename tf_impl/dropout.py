"""Dropout with the masks that common/data/dropout.py defines."""

import tensorflow as tf

from common.data.dropout import FIRST, INCREMENT, ROW_SHIFTS, SECOND, STRIDE, threshold

Tokens = tuple[tf.Tensor, tf.Tensor]  # of each token: the index of its example and its position, [t]


def drop(x: tf.Tensor, rate: float, rows: tf.Tensor) -> tf.Tensor:
    """x [..., features] without the elements that are dropped, the others over 1 - rate. rows: int64 [...]."""
    return times(x, mask(rows, tf.shape(x)[-1], rate, wide(x.dtype)))


def mask(rows: tf.Tensor, features: tf.Tensor, rate: float, dtype: tf.DType) -> tf.Tensor:
    """Of the elements of these rows, [..., features]: 0 to drop one, 1 / (1 - rate) to keep it."""
    words = tf.bitcast(rows, tf.int32)
    x = tf.range(features) * STRIDE + words[..., 1:]
    x = x * FIRST
    x = ((x ^ (tf.bitwise.right_shift(x, 15) & 0x1FFFF)) + words[..., :1]) * SECOND
    x = (x ^ (tf.bitwise.right_shift(x, 14) & 0x3FFFF)) * FIRST
    return tf.cast(x >= threshold(rate), dtype) * tf.constant(1 / (1 - rate), dtype)


def times(x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """x times a mask, in the type of x."""
    return tf.cast(tf.cast(x, mask.dtype) * mask, x.dtype)


def wide(dtype: tf.DType) -> tf.DType:
    """A mask's for x of this type: in bfloat16 1 / (1 - rate) would be up to 0.4 % off."""
    return tf.float64 if dtype == tf.float64 else tf.float32


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
