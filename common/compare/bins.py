"""Division of long curves into bins of consecutive rows that keep their extremes, so that a page can hold them."""

from collections.abc import Iterable

import numpy as np

MAX_BINS = 40_000  # of all runs together
MIN_BINS = 2_000  # of each run, if there are many long ones


def choose_bins(lengths: Iterable[int]) -> int:
    """Return the number of bins for each long curve. Shorter curves fit as they are, and leave room for the others.

    Args:
        lengths: The number of rows of each curve.
    """
    room, long = MAX_BINS, sorted(lengths)
    while long and long[0] * len(long) <= room:
        room -= long.pop(0)
    return max(MIN_BINS, room // len(long)) if long else MAX_BINS


def find_first_rows(rows: int, bins: int) -> np.ndarray:
    """Return the first row of each bin. If there are no more rows than bins, every row is a bin."""
    return np.arange(rows) if rows <= bins else np.arange(bins) * rows // bins


def find_last_rows(first_rows: np.ndarray, rows: int) -> np.ndarray:
    """Return the last row of each bin."""
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
