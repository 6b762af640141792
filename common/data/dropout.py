"""Dropout that both frameworks and every strategy draw alike (`model.dropout_semantics=aligned`).

Whether an element is dropped is a pure function of the seed, the step, the example's id, the name of the dropout layer
and the element's coordinates in the example. It does not depend on the replica, the micro-batch or the padding.

- An example has a key of 64 bits for each step: `derive_example_keys`.
- A row of elements, which is all but the last axis, has one too. It is hashed from the example's key, the layer's
  `derive_site_key` and the coordinates, one after the other, each by a step of SplitMix64.
- Its two words of 32 bits and the place in the row are hashed to a word for each element, by multiplications and
  xor-shifts (in the manner of the hashes of Wellons, "Prospecting for hash functions", 2018). An element is dropped
  where its word is below `compute_threshold`.

torch_impl/dropout.py and tf_impl/dropout.py compute it with the constants here, which are signed, as are both
frameworks' integers. Overflow wraps around.
"""

import numpy as np
import xxhash

from common.data.batch_plan import hash_words


def to_signed(word: int, bits: int) -> int:
    """The signed integer with the same bits."""
    return word - (1 << bits) if word >> (bits - 1) else word


SPLITMIX_INCREMENT = to_signed(0x9E3779B97F4A7C15, 64)  # of SplitMix64
ROW_SHIFTS = ((30, to_signed(0xBF58476D1CE4E5B9, 64)), (27, to_signed(0x94D049BB133111EB, 64)), (31, 1))
COLUMN_STRIDE = to_signed(0x9E3779B1, 32)  # between the places of a row
DOMAIN = np.uint64(xxhash.xxh3_64_intdigest(b"dropout"))  # apart from what else the seed decides
FIRST_MULTIPLIER, SECOND_MULTIPLIER = to_signed(0x7FEB352D, 32), to_signed(0x846CA68B, 32)


def derive_example_keys(seed: int, step: int, ids: np.ndarray) -> np.ndarray:
    """A key for each example of global batch `step`, int64 [n]."""
    of_step = hash_words(hash_words(np.array([seed], np.uint64) ^ DOMAIN) + np.uint64(step))
    return hash_words(of_step + ids.astype(np.uint64)).view(np.int64)


def derive_site_key(name: str) -> int:
    """The key of a dropout layer, from the name that it has in PyTorch's model."""
    return to_signed(xxhash.xxh3_64_intdigest(name.encode()), 64)


def compute_threshold(rate: float) -> int:
    """The signed 32-bit words below it are those of the elements to drop."""
    return min(round(rate * 2**32), 2**32 - 1) - 2**31
