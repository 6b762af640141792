"""The values of a tensor that differs, for a person: a few numbers of both sides, and a histogram."""

from dataclasses import dataclass

import numpy as np

BINS = 32


@dataclass(frozen=True)
class Values:
    """numbers: what of, of A, of B. counts: of the elements of A and of B in each bin between low and high."""

    numbers: list[tuple[str, float, float]]
    counts: tuple[list[int], list[int]]
    low: float
    high: float


def values_of(a: np.ndarray, b: np.ndarray) -> Values | None:
    """Of two arrays of one shape; None where there are no finite numbers in one of them."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    sides = a[np.isfinite(a)], b[np.isfinite(b)]
    if not all(each.size for each in sides):
        return None
    apart = np.abs(np.nan_to_num(a) - np.nan_to_num(b))
    index = np.unravel_index(int(apart.argmax()), apart.shape)
    numbers = [
        ("smallest", float(sides[0].min()), float(sides[1].min())),
        ("mean", float(sides[0].mean()), float(sides[1].mean())),
        ("largest", float(sides[0].max()), float(sides[1].max())),
        ("norm", float(np.linalg.norm(sides[0])), float(np.linalg.norm(sides[1]))),
    ]
    if a.size > 1:
        numbers.append((f"farthest apart, at {[int(each) for each in index]}", float(a[index]), float(b[index])))
    low, high = min(numbers[0][1:]), max(numbers[2][1:])
    counts = [np.histogram(each, BINS, (low, high if high > low else low + 1.0))[0].tolist() for each in sides]
    return Values(numbers, (counts[0], counts[1]), low, high)
