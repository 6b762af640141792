"""Summary of a tensor that differs between runs A and B, for the page of a diagnosis: statistics and two histograms."""

from dataclasses import dataclass

import numpy as np

from common.map.array_differences import compute_norm

BINS = 32


@dataclass(frozen=True)
class StatisticPair:
    """One statistic of a tensor on both sides.

    Attributes:
        name: The name of the measure, such as "mean".
        a: Its value in A.
        b: Its value in B.
    """

    name: str
    a: float
    b: float


@dataclass(frozen=True)
class ValueSummary:
    """Statistics and histograms of a tensor on both sides.

    Attributes:
        statistics: Minimum, mean, maximum, norm, and the element that differs most.
        counts_a: Number of A's elements in each bin; both histograms have the same bins.
        counts_b: Number of B's elements in each bin.
        low: Left edge of the first bin.
        high: Right edge of the last bin.
    """

    statistics: list[StatisticPair]
    counts_a: list[int]
    counts_b: list[int]
    low: float
    high: float


def summarize_values(a: np.ndarray, b: np.ndarray) -> ValueSummary | None:
    """Return a summary of two arrays of one shape, or None if one of them has no finite number."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    finite_a, finite_b = a[np.isfinite(a)], b[np.isfinite(b)]
    if not finite_a.size or not finite_b.size:
        return None
    smallest = StatisticPair("smallest", float(finite_a.min()), float(finite_b.min()))
    largest = StatisticPair("largest", float(finite_a.max()), float(finite_b.max()))
    statistics = [
        smallest,
        StatisticPair("mean", float(finite_a.mean()), float(finite_b.mean())),
        largest,
        StatisticPair("norm", compute_norm(finite_a), compute_norm(finite_b)),
    ]
    if a.size > 1:
        with np.errstate(invalid="ignore"):
            differences = np.abs(a - b)
        differences[np.isnan(differences)] = np.inf  # one of both or both are NaN or infinite
        differences[(a == b) | (np.isnan(a) & np.isnan(b))] = 0
        index = np.unravel_index(int(differences.argmax()), differences.shape)
        title = f"largest difference, at {[int(position) for position in index]}"
        statistics.append(StatisticPair(title, float(a[index]), float(b[index])))
    low, high = min(smallest.a, smallest.b), max(largest.a, largest.b)
    smallest_width = 1e-12 * max(abs(low), abs(high))  # NumPy refuses bins that are narrower than rounding errors
    edges = (low, high if high - low > smallest_width else low + max(1.0, smallest_width))
    counts_a, counts_b = (np.histogram(finite, BINS, edges)[0].tolist() for finite in (finite_a, finite_b))
    return ValueSummary(statistics, counts_a, counts_b, low, high)
