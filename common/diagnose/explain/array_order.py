"""Arrays with the same values at other indices: reversed, moved, in other blocks, or reshaped.

A is the reference run of a diagnosis, and B the run that is compared with it.
"""

from itertools import permutations

import numpy as np

from common.diagnose.explain.gates import find_block_order
from common.diagnose.explain.sums import Terms
from common.diagnose.findings import Explanation
from common.diagnose.rounding import EXPLANATION_TOLERANCE, is_close
from common.diagnose.zero_borders import describe_shift
from common.map.array_differences import relative_difference

MOST_BLOCKS = 8  # largest number of blocks along an axis whose order is searched
MOST_PARTS = 12  # largest number of parts of unequal sizes that an explanation lists
MOST_FEATURES = 1024  # largest number of features that are compared with each other
COMPARED_EXAMPLES = 32  # number of examples by which features are compared
MOST_AXES = 5  # largest number of axes whose permutations are tried
# A reordering rounds nothing. The larger tolerances of low precisions would only accept other values.
TOLERANCE = EXPLANATION_TOLERANCE["float32"]
LEAST_VALUES = 3  # fewest distinct values: zeros and ones, such as classes, often agree in another order by chance
ORDER_SHARE = 0.01  # largest share of the difference of two arrays that may remain after both are sorted


def explain_order(tensor: str, a: np.ndarray, b: np.ndarray, terms: Terms = ()) -> Explanation | None:
    """Explain that B's array has the values of A's array in another order. Return None if the values differ.

    Args:
        tensor: Name of the array in reports.
        a: A's array [n, ...].
        b: B's array, of the same shape.
        terms: Earlier arrays, which A and B may reorder differently, with their titles.
    """
    if change := _find_reversed(a, b):
        return Explanation("reversed_axis", f"{tensor} is A's, reversed along axis {change}")
    if a.ndim > 2 and (shift := describe_shift(a, b)):  # a vector with a single number looks like a moved one
        return Explanation(
            "padding_position", f"{tensor} is A's, moved by {shift}: the zeros around it are at other places"
        )
    # Sorting also lowers the difference of arrays whose values are really different, but by less
    limit = min(TOLERANCE, ORDER_SHARE * relative_difference(a, b))
    if is_close(a, b) or not _sort_and_compare(a, b) <= limit:  # NaN if the numbers are too large for a norm
        return None
    for title, array in ((title, array) for title, array in reversed(terms) if array.shape == a.shape):
        for x in (array, np.maximum(array, 0)):
            change_a = _find_reshaped(x, a)
            change_b = _find_reshaped(x, b) if change_a else None
            if change_b and change_a != change_b:
                return Explanation("reshape_order", f"{tensor} is {title}, in A {change_a}, in B {change_b}")
    if change := _find_reshaped(a, b):
        return Explanation("reshape_order", f"{tensor} is A's, {change}")
    if change := _find_shuffled_pixels(a, b):
        return Explanation("reshape_order", f"{tensor} is A's, {change}")
    if change := _find_rolled(a, b) or _find_reordered_blocks(a, b) or _find_moved_parts(a, b):
        return Explanation("joined_order", f"{tensor} is A's, {change}")
    explanation = Explanation("flatten_order", f"{tensor} has the same values in another order: flattened differently")
    return explanation if len(np.unique(a)) >= LEAST_VALUES else None


def _find_reversed(a: np.ndarray, b: np.ndarray) -> str | None:
    """Return the axis along which B's array is reversed, in all features or in some, such as those of one LSTM."""
    axes = (axis for axis in range(1, a.ndim) if a.shape[axis] > 1)
    axis = next((axis for axis in axes if is_close(np.flip(a, axis), b)), None)
    if axis is not None:
        return str(axis)
    if a.ndim != 3 or a.shape[1] < 2 or a.shape[2] > MOST_FEATURES:
        return None
    are_equal, are_reversed = (
        np.array([is_close(x, y) for x, y in zip(array.T, b.T, strict=True)]) for array in (a, np.flip(a, 1))
    )
    if not (are_reversed & ~are_equal).any() or not (are_equal | are_reversed).all():
        return None
    places = np.flatnonzero(~are_equal)
    return f"1 in {len(places)} of {a.shape[2]} elements of axis 2, from {places[0]} to {places[-1]}"


def _sort_and_compare(a: np.ndarray, b: np.ndarray) -> float:
    """Return the relative difference of two arrays after the values of each example are sorted."""
    sorted_a, sorted_b = (np.sort(array.reshape(len(array), -1), axis=1) for array in (a, b))
    return relative_difference(sorted_a, sorted_b)


def _find_rolled(a: np.ndarray, b: np.ndarray) -> str | None:
    """Check whether a = concat(x, y) and b = concat(y, x) along some axis."""
    for axis in range(1, a.ndim):
        for size in range(1, a.shape[axis]):
            # The first example alone rejects most sizes
            if is_close(np.roll(a[:1], -size, axis), b[:1]) and is_close(np.roll(a, -size, axis), b):
                remaining_size = a.shape[axis] - size
                return (
                    f"with the first {size} and the last {remaining_size} elements of axis {axis} in the other "
                    "order: joined in another order, or moved by a step"
                )
    return None


def _find_reordered_blocks(a: np.ndarray, b: np.ndarray) -> str | None:
    for axis in range(1, a.ndim):
        for count in range(2, min(MOST_BLOCKS, a.shape[axis]) + 1):
            moved_a, moved_b = (np.moveaxis(array, axis, -1) for array in (a, b))
            if order := find_block_order(moved_a, moved_b, count, is_close):
                return f"with {count} blocks of axis {axis} in another order: {', '.join(map(str, order))}"
    return None


def _find_moved_parts(a: np.ndarray, b: np.ndarray) -> str | None:
    """Check whether two arrays [n, features] have the same parts, of any sizes, in another order."""
    if a.ndim != 2 or a.shape[1] > MOST_FEATURES:
        return None
    sampled_a, sampled_b = a[:COMPARED_EXAMPLES], b[:COMPARED_EXAMPLES]
    limits = TOLERANCE * np.abs(sampled_b).max(0)
    sources: list[int] = []
    for column, limit in zip(sampled_b.T, limits, strict=True):
        candidates = np.flatnonzero((np.abs(sampled_a - column[:, None]) <= limit).all(0)).tolist()
        candidates = [x for x in candidates if x not in sources]
        following = sources[-1] + 1 if sources else 0
        if not candidates:
            return None
        sources.append(following if following in candidates else candidates[0])
    starts = [index for index, x in enumerate(sources) if index == 0 or x != sources[index - 1] + 1]
    if len(starts) > MOST_PARTS or not is_close(a[:, sources], b):
        return None
    ends = [*starts[1:], len(sources)]
    parts = [f"{sources[start]}:{sources[start] + end - start}" for start, end in zip(starts, ends, strict=True)]
    return f"with the elements of axis 1 joined in another order: A's {', '.join(parts)}"


def _find_shuffled_pixels(a: np.ndarray, b: np.ndarray) -> str | None:
    """Check whether both sides moved channels into height and width, but divided the channels differently."""
    if a.ndim != 4:
        return None
    height, width, channels = a.shape[1:]
    for size in (size for size in range(2, min(height, width) + 1) if height % size == width % size == 0):
        orders = f"{channels} x {size} x {size}", f"{size} x {size} x {channels}"
        for first, second, (in_a, in_b) in ((a, b, orders), (b, a, orders[::-1])):
            divided = first.reshape(-1, height // size, size, width // size, size, channels)
            moved = divided.transpose(0, 1, 3, 5, 2, 4).reshape(-1, height // size, width // size, size, size, channels)
            if is_close(moved.swapaxes(2, 3).reshape(a.shape), second):
                names = "PyTorch's PixelShuffle has the channels first, TensorFlow's depth_to_space last"
                return f"with channels divided as {in_a} in A and {in_b} in B before they become pixels: {names}"
    return None


def _find_reshaped(a: np.ndarray, b: np.ndarray) -> str | None:
    """Check whether B's array is A's with its axes in another order, or with an axis divided and transposed."""
    if is_close(a, b):
        return "as it is"
    if _sort_and_compare(a[:1], b[:1]) > TOLERANCE:
        return None
    axes = range(1, a.ndim)
    if a.ndim <= MOST_AXES:
        for order in permutations(axes):
            if is_close(a.transpose(0, *order).reshape(a.shape), b):
                return f"with its axes in the order {', '.join(map(str, order))} and then reshaped to the same shape"
    for axis in axes:
        size = a.shape[axis]
        for groups in (groups for groups in range(2, size) if size % groups == 0):
            shape = (*a.shape[:axis], groups, size // groups, *a.shape[axis + 1 :])
            if is_close(a.reshape(shape).swapaxes(axis, axis + 1).reshape(a.shape), b):
                return f"with axis {axis} of {size} read as {groups} x {size // groups} and transposed"
    return None
