"""Sequences of different lengths: stored one after the other, and as the rows of a padded batch.

n is the number of sequences, and t is the sum of their lengths. `lengths` is always int64 [n].
"""

import numpy as np

WIDTH_MULTIPLE = 8  # batches are padded to a multiple of this, so that there are fewer distinct shapes


def compute_padded_width(lengths: np.ndarray) -> int:
    """Return the width of the padded batch: the largest length, rounded up to a multiple of WIDTH_MULTIPLE."""
    return -(-max(1, int(lengths.max())) // WIDTH_MULTIPLE) * WIDTH_MULTIPLE


def locate_values(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each stored value's row in the padded batch, int64 [t], and its position in that row, int64 [t]."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    starts = np.cumsum(lengths) - lengths  # index of the first stored value of each sequence
    return rows, np.arange(len(rows)) - starts[rows]


def build_mask(lengths: np.ndarray, width: int) -> np.ndarray:
    """Return the mask of a padded batch, int32 [n, width]: 1 for a value, 0 for padding."""
    mask: np.ndarray = (np.arange(width) < lengths[:, None]).astype(np.int32)
    return mask
