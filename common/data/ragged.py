"""Sequences of different lengths: where their values are in a batch that is padded to one width."""

import numpy as np

WIDTH_MULTIPLE = 8  # batches are padded to a multiple of this: fewer distinct shapes


def compute_padded_width(lengths: np.ndarray) -> int:
    """The width that sequences of these lengths are padded to."""
    return -(-max(1, int(lengths.max())) // WIDTH_MULTIPLE) * WIDTH_MULTIPLE


def locate_values(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The row and the position in it of each value of sequences that stand one after the other: int64 [t] each."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return rows, np.arange(len(rows)) - (np.cumsum(lengths) - lengths)[rows]


def build_mask(lengths: np.ndarray, width: int) -> np.ndarray:
    """1 where a row has a value, 0 where it is padding: int32 [n, width]."""
    real: np.ndarray = (np.arange(width) < lengths[:, None]).astype(np.int32)
    return real
