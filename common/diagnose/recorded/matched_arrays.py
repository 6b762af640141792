"""Assignment of recorded arrays to the arrays of a script's batch if their names do not show it.

Arrays are paired in their order. Token ids, segments and labels may have one shape, so that the order is overruled if
ranges of values contradict it. Values of one distribution never do.
"""

from collections.abc import Callable, Mapping

import numpy as np
from scipy.optimize import linear_sum_assignment

FEWEST = 16  # integers, or rows of other numbers, that show a range of values
MOST = 0.5  # share of values outside of the range of another array by which the two have other ranges
# Costs of pairs: each is far above the sum of all lower ones
OTHER_RANGES = 1e3
NEVER = 1e6  # of a pair that does not fit


def match_in_order(
    leaves: Mapping[str, np.ndarray],
    arrays: Mapping[str, np.ndarray],
    fits: Callable[[np.ndarray, np.ndarray], bool],
) -> dict[str, str]:
    """Return the name of the first unused recorded array that fits, for each leaf that one of them fits.

    Args:
        leaves: Arrays of the script's batch.
        arrays: Recorded arrays.
        fits: Checks whether a recorded array may replace one of the script's.
    """
    matches: dict[str, str] = {}
    for leaf, template in leaves.items():
        unused = [name for name in arrays if name not in matches.values() and fits(arrays[name], template)]
        if unused:
            matches[leaf] = unused[0]
    return matches


def match_by_values(
    leaves: Mapping[str, np.ndarray],
    arrays: Mapping[str, np.ndarray],
    fits: Callable[[np.ndarray, np.ndarray], bool],
) -> dict[str, str]:
    """Return the matches in order, or others if only those have equal ranges of values.

    Args:
        leaves: Arrays of the script's batch.
        arrays: Recorded arrays.
        fits: Checks whether a recorded array may replace one of the script's.
    """
    in_order = match_in_order(leaves, arrays, fits)
    if len(arrays) == 1 or not any(_have_other_ranges(leaves[leaf], arrays[name]) for leaf, name in in_order.items()):
        return in_order
    costs = {
        (leaf, name): _compute_cost(in_order.get(leaf) == name, template, array) if fits(array, template) else NEVER
        for leaf, template in leaves.items()
        for name, array in arrays.items()
    }
    table = np.array([*costs.values()]).reshape(len(leaves), len(arrays))
    cells = np.array([*costs]).reshape(len(leaves), len(arrays), 2)[linear_sum_assignment(table)]
    best = {f"{leaf}": f"{name}" for leaf, name in cells if costs[leaf, name] < NEVER}
    is_consistent = not any(_have_other_ranges(leaves[leaf], arrays[name]) for leaf, name in best.items())
    return best if len(best) == len(in_order) and is_consistent else in_order


def _compute_cost(is_in_order: bool, template: np.ndarray, array: np.ndarray) -> float:
    """Return the cost of a pair: one pair with other ranges costs more than all pairs in another order."""
    return OTHER_RANGES * _have_other_ranges(template, array) + (not is_in_order)


def _have_other_ranges(template: np.ndarray, array: np.ndarray) -> bool:
    """Check whether most values of one array are outside of the range of the other one."""
    samples = [np.nan_to_num(x.astype(np.float64)).ravel() for x in (template, array)]
    counts = [x.size if x.dtype.kind in "iub" else len(x) if x.size else 0 for x in (template, array)]
    if min(counts) < FEWEST:
        return False
    shares = [((x < y.min()) | (x > y.max())).mean() for x, y in (samples, samples[::-1])]
    return max(shares) > MOST
