"""Which array of a script's batch is which array of a record, if their names do not show it."""

from collections.abc import Callable, Mapping

import numpy as np
from scipy.optimize import linear_sum_assignment

BINS = 16  # of a histogram of values
CLEARLY = 0.3  # common share of two histograms by which another assignment must be better than the order of the arrays


def match_by_values(
    leaves: Mapping[str, np.ndarray],
    arrays: Mapping[str, np.ndarray],
    fits: Callable[[np.ndarray, np.ndarray], bool],
) -> dict[str, str]:
    """Return the name of the recorded array for each leaf that one of them fits.

    They are paired in their order, unless the values clearly show another assignment: token ids, segments and labels
    may have one shape.

    Args:
        leaves: Arrays of the script's batch.
        arrays: Recorded arrays.
        fits: Checks whether a recorded array may replace one of the script's.
    """
    in_order: dict[str, str] = {}
    for leaf, template in leaves.items():
        left = [name for name in arrays if name not in in_order.values() and fits(arrays[name], template)]
        if left:
            in_order[leaf] = left[0]
    shares = {
        (leaf, name): _compare_values(template, array) if fits(array, template) else -1.0
        for leaf, template in leaves.items()
        for name, array in arrays.items()
    }
    table = np.array([*shares.values()]).reshape(len(leaves), len(arrays))
    cells = np.array([*shares]).reshape(len(leaves), len(arrays), 2)[linear_sum_assignment(table, maximize=True)]
    best = {f"{leaf}": f"{name}" for leaf, name in cells if shares[leaf, name] >= 0}
    gain = sum(shares[pair] for pair in best.items()) - sum(shares[pair] for pair in in_order.items())
    return best if len(best) == len(in_order) and gain > CLEARLY else in_order


def _compare_values(template: np.ndarray, array: np.ndarray) -> float:
    """Return the common share of the histograms of two arrays."""
    samples = [np.nan_to_num(x.astype(np.float64)).ravel() for x in (template, array)]
    low, high = min(x.min() for x in samples), max(x.max() for x in samples)
    counts = [np.histogram(x, BINS, (low, high if high > low else low + 1))[0] / x.size for x in samples]
    return float(np.minimum(*counts).sum())
