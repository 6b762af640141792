"""Dropout with the masks that common/data/dropout.py defines, equal on both sides.

A row is all elements along the last axis. Its key is a hash of the key of the example, the key of the dropout layer
(the site key) and the coordinates of the row. The key of the row and the position of an element in the row decide
whether the element is dropped, or select a normally distributed number for it. All keys are int64; overflow wraps
around.
"""

from collections.abc import Sequence

import tensorflow as tf

from common.data.dropout import (
    COLUMN_STRIDE,
    FIRST_MULTIPLIER,
    ROW_SHIFTS,
    SECOND_MULTIPLIER,
    SPLITMIX_INCREMENT,
    compute_threshold,
)

TokenPositions = tuple[tf.Tensor, tf.Tensor]  # for each token: the index of its example, and its position, [t]


def apply_dropout(x: tf.Tensor, rate: float, row_keys: tf.Tensor) -> tf.Tensor:
    """Drop elements of x [..., features] and divide the others by 1 - rate.

    Args:
        x: The input of a dropout layer.
        rate: The probability with which an element is dropped.
        row_keys: The key of each row of x, int64 [...].
    """
    return apply_mask(x, 1 / (1 - rate), compute_mask(row_keys, tf.shape(x)[-1], rate))


def apply_mask(x: tf.Tensor, factor: float, mask: tf.Tensor) -> tf.Tensor:
    """Return x * factor for elements whose mask is true, and 0 for the others."""
    wide = tf.float64 if x.dtype == tf.float64 else tf.float32  # bfloat16 would round the factor by up to 0.4 %
    factors = tf.cast(mask, wide) * tf.constant(factor, wide)
    return tf.cast(tf.cast(x, wide) * factors, x.dtype)


def compute_mask(row_keys: tf.Tensor, features: tf.Tensor, rate: float) -> tf.Tensor:
    """Return the mask of elements that are not dropped, bool [..., features], from the keys of their rows."""
    return _hash_elements(row_keys, features) >= compute_threshold(rate)


def compute_normal(row_keys: tf.Tensor, features: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    """Return normally distributed numbers [..., features] from the keys of their rows.

    table: The numbers of `compute_normal_table`. The sum of two random ones of them is a standard normal number.
    """
    words = _hash_elements(row_keys, features)
    return tf.gather(table, words & 0xFFFF) + tf.gather(table, tf.bitwise.right_shift(words, 16) & 0xFFFF)


def _hash_elements(row_keys: tf.Tensor, features: tf.Tensor) -> tf.Tensor:
    words = tf.bitcast(row_keys, tf.int32)  # low and high 32 bits of each key, [..., 2]
    x = tf.range(features) * COLUMN_STRIDE + words[..., 1:]
    x = x * FIRST_MULTIPLIER
    x = ((x ^ (tf.bitwise.right_shift(x, 15) & 0x1FFFF)) + words[..., :1]) * SECOND_MULTIPLIER
    return (x ^ (tf.bitwise.right_shift(x, 14) & 0x3FFFF)) * FIRST_MULTIPLIER


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

    The keys equal those of `hash_rows` for the same tokens in a padded input [n, positions, features].
    """
    examples, positions = tokens
    return _mix(tf.gather(_mix(example_keys ^ site_key), examples) + tf.cast(positions + 1, tf.int64))


def _mix(x: tf.Tensor) -> tf.Tensor:
    """Apply one step of SplitMix64, an invertible hash, to int64 words."""
    x = x + SPLITMIX_INCREMENT
    for shift, factor in ROW_SHIFTS:
        x = (x ^ (tf.bitwise.right_shift(x, tf.constant(shift, tf.int64)) & ((1 << (64 - shift)) - 1))) * factor
    return x
