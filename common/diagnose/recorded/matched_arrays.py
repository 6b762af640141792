"""Assignment of recorded arrays to the arrays of a script's batch if their names do not match.

Arrays are paired in their order. Token ids, segments and labels may have one shape, so that the order is overruled if
ranges of values contradict it. Values of one distribution never do.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from scipy.optimize import linear_sum_assignment

from common.diagnose.recorded.array_layouts import are_one_hot, convert_to_layout, may_be_class_column

FEWEST = 16  # integers, or rows of other numbers, that show a range of values
MOST = 0.5  # share of values outside of the range of another array that makes the ranges count as different
# Costs of pairs: each is far above the sum of all lower ones
OTHER_RANGES = 1e3
NEVER = 1e6  # of a pair that does not fit


def match_in_order(
    leaves: Mapping[str, np.ndarray],
    arrays: Mapping[str, np.ndarray],
    fits: Callable[[np.ndarray, np.ndarray], bool],
) -> dict[str, str]:
    """Return the name of the first unused recorded array that fits a leaf, by the name of the leaf.

    A leaf that no unused array fits is left out.

    Args:
        leaves: Arrays of the script's batch.
        arrays: Recorded arrays.
        fits: Checks whether a recorded array may replace an array of the script's batch.
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
    """Return the matches in order, or matches in another order if only these pair arrays with equal ranges of values.

    Args:
        leaves: Arrays of the script's batch.
        arrays: Recorded arrays.
        fits: Checks whether a recorded array may replace an array of the script's batch.
    """
    in_order = match_in_order(leaves, arrays, fits)
    is_single = len(arrays) == len(leaves) == 1
    if is_single or not any(have_other_ranges(leaves[leaf], arrays[name]) for leaf, name in in_order.items()):
        return in_order
    costs = {
        (leaf, name): _compute_cost(in_order.get(leaf) == name, template, array) if fits(array, template) else NEVER
        for leaf, template in leaves.items()
        for name, array in arrays.items()
    }
    table = np.array([*costs.values()]).reshape(len(leaves), len(arrays))
    cells = np.array([*costs]).reshape(len(leaves), len(arrays), 2)[linear_sum_assignment(table)]
    best = {f"{leaf}": f"{name}" for leaf, name in cells if costs[leaf, name] < NEVER}
    is_consistent = not any(have_other_ranges(leaves[leaf], arrays[name]) for leaf, name in best.items())
    return best if len(best) == len(in_order) and is_consistent else in_order


def prefer_ranges(
    fits: Callable[[np.ndarray, np.ndarray], bool], leaves: Mapping[str, np.ndarray]
) -> Callable[[np.ndarray, np.ndarray], bool]:
    """Return a check by which an array replaces no leaf of another range if it has that of a leaf in another layout."""

    def may_replace(array: np.ndarray, template: np.ndarray) -> bool:
        is_fitting = fits(array, template)
        if not is_fitting or not have_other_ranges(template, array):
            return is_fitting
        others = (leaf for leaf in leaves.values() if not fits(array, leaf) and has_equal_shape(array, leaf))
        return all(have_other_ranges(leaf, array) for leaf in others)

    return may_replace


def _compute_cost(is_in_order: bool, template: np.ndarray, array: np.ndarray) -> float:
    """Return the cost of a pair: one pair with other ranges costs more than all pairs in another order."""
    return OTHER_RANGES * have_other_ranges(template, array) + (not is_in_order)


def match_copies(leaves: Mapping[str, np.ndarray], matches: Mapping[str, str]) -> dict[str, str]:
    """Return the recorded arrays of leaves that are copies of other leaves, as labels of a model with two outputs."""
    copies = {}
    for leaf, array in leaves.items():
        equal = (name for name in matches if np.array_equal(leaves[name], array))
        if leaf not in matches and not is_constant(array) and (copied := next(equal, None)) is not None:
            copies[leaf] = matches[copied]
    return copies


def have_other_ranges(template: np.ndarray, array: np.ndarray) -> bool:
    """Check whether most values of one array are outside of the range of the other array, or only one has fractions."""
    if template.shape == array.shape and are_whole(template) != are_whole(array):
        return not (is_constant(template) or is_constant(array))
    samples = [np.nan_to_num(x.astype(np.float64)).ravel() for x in (template, array)]
    counts = [x.size if x.dtype.kind in "iub" else len(x) if x.size else 0 for x in (template, array)]
    if min(counts) < FEWEST:
        return False
    shares = [((x < y.min()) | (x > y.max())).mean() for x, y in (samples, samples[::-1])]
    return max(shares) > MOST


def is_constant(array: np.ndarray) -> bool:
    """Check whether all elements are the same, as in labels that a script makes with ones_like."""
    return array.size > 1 and bool((array == array.flat[0]).all())


def are_whole(array: np.ndarray) -> bool:
    """Check whether an array has only whole numbers, whatever its type."""
    return array.dtype.kind != "f" or bool((array == np.round(array)).all())


def is_continuous(array: np.ndarray) -> bool:
    """Check whether an array has numbers that are neither classes nor all the same."""
    return array.dtype.kind == "f" and bool((array != np.round(array)).any()) and not is_constant(array)


def is_mask_of_other(array: np.ndarray, other: np.ndarray) -> bool:
    """Check whether an array is a mask of True and False, and another array has other numbers than 0 and 1."""
    is_mask = array.dtype.kind == "b" and not (array.ndim == other.ndim + 1 and are_one_hot(array))
    return is_mask and not bool(((other == 0) | (other == 1)).all())


def has_same_shape(array: np.ndarray, template: np.ndarray) -> bool:
    """Check whether recorded examples have the shape and the kind of the script's."""
    return array.shape[1:] == template.shape[1:] and (array.dtype.kind == "f") == (template.dtype.kind == "f")


def has_same_mask(array: np.ndarray, template: np.ndarray) -> bool:
    """Check whether one array is a mask of True and False, and the other one has zeros and ones in the same shape."""
    kinds = {array.dtype.kind, template.dtype.kind}
    are_binary = all(bool(((x == 0) | (x == 1)).all()) for x in (array, template))
    return array.shape[1:] == template.shape[1:] and kinds == {"b", "f"} and are_binary


def has_exact(arrays: Mapping[str, np.ndarray], template: np.ndarray) -> bool:
    """Check whether one of several arrays has the shape and the kind of the script's."""
    return any(has_same_shape(array, template) for array in arrays.values())


def has_same_frames(array: np.ndarray, template: np.ndarray) -> bool:
    """Check whether recorded examples are sequences of the script's vectors, of any length."""
    is_float = [x.dtype.kind == "f" for x in (array, template)]
    return array.ndim == template.ndim and array.shape[2:] == template.shape[2:] and is_float[0] == is_float[1]


def has_same_lengths(leaves: Iterable[np.ndarray], arrays: Iterable[np.ndarray]) -> bool:
    """Check whether each sequence of integers in a script's batch has the length of a recorded sequence.

    A length then identifies a sequence. Otherwise the sequences are padded to other lengths in each batch.
    """
    lengths, recorded = (Counter(x.shape[1] for x in side if _are_tokens(x, x)) for side in (leaves, arrays))
    return not lengths - recorded


def has_same_shape_of_data(array: np.ndarray, template: np.ndarray) -> bool:
    """Check the same as `has_same_shape`, but not for sequences of integers, whose lengths may be chance."""
    return has_same_shape(array, template) and not _are_tokens(array, template)


def has_equal_shape(array: np.ndarray, template: np.ndarray) -> bool:
    """Check whether recorded examples have the shape and the kind of the script's after a change of layout."""
    is_float = [x.dtype.kind == "f" for x in (array, template)]
    converted = convert_to_layout(array[:1], template[:1])
    is_column = may_be_class_column(array, template) or may_be_class_column(template, array)
    is_one_hot = is_column or ({array.ndim, template.ndim} == {1, 2} and converted.ndim == template.ndim)
    if not _may_be_classes(array, template):
        return False
    return (is_float[0] == is_float[1] or is_one_hot) and (
        converted.shape[1:] == template.shape[1:] or _are_tokens(array, template)
    )


def has_converted_shape(array: np.ndarray, template: np.ndarray) -> bool:
    """Check the same as `has_equal_shape`, but not for sequences of integers, whose lengths may be chance."""
    return has_equal_shape(array, template) and not _are_tokens(array, template)


def has_one_column(array: np.ndarray, template: np.ndarray) -> bool:
    """Check whether recorded examples have one number each in a column, and the script's have numbers of their kind."""
    is_column = array.ndim == 2 and array.shape[1] == 1 and template.ndim == 1
    return is_column and (array.dtype.kind == "f") == (template.dtype.kind == "f")


def has_like_shape(array: np.ndarray, template: np.ndarray) -> bool:
    """Check whether recorded examples may replace the script's, though their type or sizes differ."""
    if not _may_be_classes(array, template):
        return False
    has_columns = (array.ndim, template.ndim) == (2, 1)
    are_features = array.ndim == template.ndim == 2 and "f" in (array.dtype.kind, template.dtype.kind)
    if are_features and array.shape[1] != template.shape[1]:
        return False
    if array.ndim == template.ndim == 2 and (array.shape[1] == 1) != (template.shape[1] == 1):
        return False  # a column of a table is no sequence
    converted = convert_to_layout(array[:1], template[:1])
    have_other_sizes = converted.ndim == template.ndim > 1 and converted.dtype.kind == template.dtype.kind == "f"
    return has_columns or array.ndim == template.ndim or converted.shape[1:] == template.shape[1:] or have_other_sizes


def _may_be_classes(array: np.ndarray, template: np.ndarray) -> bool:
    """Check whether rows of one side and numbers of the other may be the same classes: one-hot, or one element."""
    if {array.ndim, template.ndim} != {1, 2}:
        return True
    rows = array if array.ndim == 2 else template
    return rows.shape[1] == 1 or np.allclose(rows.sum(1), 1, atol=1e-3)


def _are_tokens(array: np.ndarray, template: np.ndarray) -> bool:
    """Check whether both are sequences of integers, whose lengths may differ. A column of a table is none."""
    are_sequences = all(x.ndim == 2 and x.dtype.kind in "iub" for x in (array, template))
    return are_sequences and (array.shape[1] == 1) == (template.shape[1] == 1)


def are_copies(a: np.ndarray, b: np.ndarray) -> bool:
    """Check whether two arrays have the same values for each example."""
    return a.size == b.size and len(a) == len(b) and np.array_equal(a.reshape(len(a), -1), b.reshape(len(b), -1))


def unflatten(leaves: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of a batch. Labels whose tokens share one axis get the shape of the token ids."""
    tokens = [x for x in leaves.values() if x.ndim == 2 and x.shape[1] > 1 and x.dtype.kind in "iu"]
    return {
        name: leaf.reshape(next((x.shape for x in tokens if leaf.ndim == 1 and leaf.size == x.size), leaf.shape))
        for name, leaf in leaves.items()
    }
