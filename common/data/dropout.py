"""Dropout with the same masks in both frameworks and all strategies (`model.dropout_semantics=aligned`).

Whether an element is dropped is a pure function of the seed, the step, the id of the example, the name of the dropout
layer and the coordinates of the element in the example. The replica, the micro-batch and the padding have no influence.

- Every example has a 64-bit key per step: `derive_example_keys`.
- A row of elements (all axes but the last) has a 64-bit key too. It is hashed from the example's key, the layer's key
  (`derive_site_key`) and the coordinates, one after the other, by one step of SplitMix64 each.
- The two 32-bit words of the row's key and the position in the row are hashed to a 32-bit word per element, by
  multiplications and xor-shifts (like the hashes of Wellons, "Prospecting for hash functions", 2018). An element is
  dropped if its word is below `compute_threshold`.

torch_impl/dropout.py and tf_impl/dropout.py compute the masks with the constants of this file. The constants are signed
because the integers of both frameworks are signed. Overflow wraps around.
"""

import numpy as np
import xxhash

from common.data.batch_plan import hash_words


def to_signed(word: int, bits: int) -> int:
    """Return the signed integer that has the same bits as an unsigned word."""
    return word - (1 << bits) if word >> (bits - 1) else word


SPLITMIX_INCREMENT = to_signed(0x9E3779B97F4A7C15, 64)
ROW_SHIFTS = ((30, to_signed(0xBF58476D1CE4E5B9, 64)), (27, to_signed(0x94D049BB133111EB, 64)), (31, 1))
COLUMN_STRIDE = to_signed(0x9E3779B1, 32)  # between neighbouring elements of a row
FIRST_MULTIPLIER, SECOND_MULTIPLIER = to_signed(0x7FEB352D, 32), to_signed(0x846CA68B, 32)
DOMAIN = np.uint64(xxhash.xxh3_64_intdigest(b"dropout"))  # separates the masks from other uses of the seed


def derive_example_keys(seed: int, step: int, ids: np.ndarray) -> np.ndarray:
    """Return the key of each example of global batch `step`, int64 [n]."""
    step_key = hash_words(hash_words(np.array([seed], np.uint64) ^ DOMAIN) + np.uint64(step))
    return hash_words(step_key + ids.astype(np.uint64)).view(np.int64)


def derive_site_key(name: str) -> int:
    """Return the key of a dropout layer, from the layer's name in the PyTorch model."""
    return to_signed(xxhash.xxh3_64_intdigest(name.encode()), 64)


def compute_threshold(rate: float) -> int:
    """Return the signed 32-bit threshold below which the words of a share `rate` of all elements are."""
    return min(round(rate * 2**32), 2**32 - 1) - 2**31
