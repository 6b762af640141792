"""Division of long curves into bins, so that a page can hold them. A bin keeps the extremes of its rows.

A bin is a group of consecutive rows, and a row of a curve is one step. The functions below represent bins by an array
with the index of the first row of each bin.
"""

from collections.abc import Iterable

import numpy as np

MAX_BINS = 40_000  # largest number of bins of all runs together
MIN_BINS = 2_000  # number of bins that each run gets at least


def choose_bins(lengths: Iterable[int]) -> int:
    """Return the number of bins for each long curve. Shorter curves fit as they are, and leave room for the others.

    Args:
        lengths: The number of rows of each curve.
    """
    bins_left, long_lengths = MAX_BINS, sorted(lengths)
    while long_lengths and long_lengths[0] * len(long_lengths) <= bins_left:
        bins_left -= long_lengths.pop(0)
    return max(MIN_BINS, bins_left // len(long_lengths)) if long_lengths else MAX_BINS


def find_first_rows(rows: int, bins: int) -> np.ndarray:
    """Return the first row of each bin, given the numbers of rows and bins. With few rows, every row is a bin."""
    return np.arange(rows) if rows <= bins else np.arange(bins) * rows // bins


def find_last_rows(first_rows: np.ndarray, rows: int) -> np.ndarray:
    """Return the last row of each bin, given the number of all rows."""
    return np.append(first_rows[1:], rows)[: len(first_rows)] - 1


def max_per_bin(values: np.ndarray, first_rows: np.ndarray) -> np.ndarray:
    """Return the largest value of each bin; NaN only if all its values are NaN."""
    return np.fmax.reduceat(values, first_rows) if len(first_rows) else values[:0]


def min_per_bin(values: np.ndarray, first_rows: np.ndarray) -> np.ndarray:
    """Return the smallest value of each bin; NaN only if all its values are NaN."""
    return np.fmin.reduceat(values, first_rows) if len(first_rows) else values[:0]


def mean_per_bin(values: np.ndarray, first_rows: np.ndarray) -> np.ndarray:
    """Return the mean of each bin; NaN if one of its values is NaN."""
    sizes = np.diff(np.append(first_rows, len(values)))
    return np.add.reduceat(values, first_rows) / sizes if len(first_rows) else values[:0]
