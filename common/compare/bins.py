"""Divides long curves into parts of consecutive rows that keep their extremes, so that a page can hold them."""

import numpy as np

MOST_BINS, FEWEST_BINS = 20_000, 2_000  # of one curve: for two runs, and for twenty or more
BUDGET = 40_000  # bins of all runs together


def bins_for(runs: int) -> int:
    """Into how many parts a curve is divided where a page shows so many runs."""
    return min(MOST_BINS, max(FEWEST_BINS, BUDGET // max(runs, 1)))


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
