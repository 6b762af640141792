"""Divides long curves into parts of consecutive rows that keep their extremes, so that a page can hold them."""

from collections.abc import Iterable

import numpy as np

BUDGET, FEWEST_BINS = 40_000, 2_000  # bins of all runs together, and of each where there are many


def bins_for(lengths: Iterable[int]) -> int:
    """Into how many parts the longer ones of curves of these lengths are divided; the shorter ones fit as they are."""
    room, long = BUDGET, sorted(lengths)
    while long and long[0] * len(long) <= room:
        room -= long.pop(0)
    return max(FEWEST_BINS, room // len(long)) if long else BUDGET


def first_rows(rows: int, bins: int) -> np.ndarray:
    """The first row of each part; every row is one where there are no more rows than parts."""
    return np.arange(rows) if rows <= bins else np.arange(bins) * rows // bins


def last_rows(first: np.ndarray, rows: int) -> np.ndarray:
    """The last row of each part."""
    return np.append(first[1:], rows)[: len(first)] - 1


def largest(values: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The largest value of each part, without NaN unless it has nothing else."""
    return np.fmax.reduceat(values, first) if len(first) else values[:0]


def smallest(values: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The smallest value of each part, without NaN unless it has nothing else."""
    return np.fmin.reduceat(values, first) if len(first) else values[:0]


def mean(values: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The mean of each part; NaN where a value is."""
    sizes = np.diff(np.append(first, len(values)))
    return np.add.reduceat(values, first) / sizes if len(first) else values[:0]
