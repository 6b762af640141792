"""Sequences of different lengths, stored one after the other, and their layout in a padded batch."""

import numpy as np

WIDTH_MULTIPLE = 8  # batches are padded to a multiple of this, so that there are fewer distinct shapes


def compute_padded_width(lengths: np.ndarray) -> int:
    """Return the width to which sequences of these lengths are padded."""
    return -(-max(1, int(lengths.max())) // WIDTH_MULTIPLE) * WIDTH_MULTIPLE


def locate_values(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the row of each value in the padded batch, int64 [t], and its position in that row, int64 [t]."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return rows, np.arange(len(rows)) - (np.cumsum(lengths) - lengths)[rows]


def build_mask(lengths: np.ndarray, width: int) -> np.ndarray:
    """Return int32 [n, width]: 1 for a value, 0 for padding."""
    mask: np.ndarray = (np.arange(width) < lengths[:, None]).astype(np.int32)
    return mask
