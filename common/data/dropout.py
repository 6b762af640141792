"""Dropout with the same masks in both frameworks and all strategies (`model.dropout_semantics=aligned`).

Whether an element is dropped is a pure function of the seed, the step, the id of the example, the name of the dropout
layer and the coordinates of the element in the example. The replica, the micro-batch and the padding have no influence.

- An example has a 64-bit key, which changes with every step: `derive_example_keys`.
- A dropout layer, which the code calls a site, has a 64-bit key: `derive_site_key`.
- A row, the elements along the last axis, has a 64-bit key too. One step of SplitMix64 hashes the xor of the example's
  key and the site's key. One more step follows for each coordinate of the row, its index on another axis.
- An element has a 32-bit word: a hash of the two halves of the row's key and the position of the element in the row, by
  multiplications and xor-shifts (like the hashes of Wellons, "Prospecting for hash functions", 2018). The element is
  dropped if its word is below `compute_threshold`.
- Normal numbers, for layers such as GaussianNoise, come from the same words: each half of a word selects a number of
  `compute_normal_table`, and their sum is the normal number. Table and sum are exact, so both frameworks draw the same.

This file has the keys and the constants. torch_impl/dropout.py and tf_impl/dropout.py compute the hashes of rows and
elements from them. The constants are signed because the integers of both frameworks are signed. Overflow wraps around.
"""

import math
from functools import cache
from statistics import NormalDist

import numpy as np
import xxhash

from common.data.batch_plan import hash_words


def to_signed(word: int, bits: int) -> int:
    """Return the signed integer that has the same bits as an unsigned word."""
    return word - (1 << bits) if word >> (bits - 1) else word


# A step of SplitMix64 adds the increment to a word. Then, for each pair (shift, multiplier), it xors the word with the
# word shifted right, and multiplies it.
SPLITMIX_INCREMENT = to_signed(0x9E3779B97F4A7C15, 64)
ROW_SHIFTS = ((30, to_signed(0xBF58476D1CE4E5B9, 64)), (27, to_signed(0x94D049BB133111EB, 64)), (31, 1))
COLUMN_STRIDE = to_signed(0x9E3779B1, 32)  # times the position of an element in its row
FIRST_MULTIPLIER, SECOND_MULTIPLIER = to_signed(0x7FEB352D, 32), to_signed(0x846CA68B, 32)
NORMAL_TABLE_SIZE = 2**16
DOMAIN = np.uint64(xxhash.xxh3_64_intdigest(b"dropout"))  # makes the masks independent of other uses of the seed


def derive_example_keys(seed: int, step: int, ids: np.ndarray) -> np.ndarray:
    """Return the key of each example at a step, int64 [n]. `ids` are the indices of the examples in their split."""
    step_key = hash_words(hash_words(np.array([seed], np.uint64) ^ DOMAIN) + np.uint64(step))
    return hash_words(step_key + ids.astype(np.uint64)).view(np.int64)


def derive_site_key(name: str) -> int:
    """Return the key of a dropout layer, from the layer's name in the PyTorch model."""
    return to_signed(xxhash.xxh3_64_intdigest(name.encode()), 64)


def compute_threshold(rate: float) -> int:
    """Return the signed 32-bit integer below which a random signed 32-bit word lies with probability `rate`."""
    return min(round(rate * 2**32), 2**32 - 1) - 2**31


@cache
def compute_normal_table() -> np.ndarray:
    """Return a table of numbers, float64 [2^16]. The sum of two random entries is a standard normal number.

    The table has the quantiles of the normal distribution with half the variance. The first six moments of the sums are
    within 0.1 % of the moments of normal numbers, and the largest sum is 6.1.
    """
    upper = [
        NormalDist().inv_cdf((index + 0.5) / NORMAL_TABLE_SIZE)
        for index in range(NORMAL_TABLE_SIZE // 2, NORMAL_TABLE_SIZE)
    ]
    quantiles = np.array([-x for x in reversed(upper)] + upper)
    return quantiles / (math.sqrt(2) * quantiles.std())
