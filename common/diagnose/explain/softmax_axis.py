"""Softmax over another axis: in the result itself, or in the weights of a sum weights @ rows, such as attention.

A is the reference run of a diagnosis, and B the run that is compared with it.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.special import log_softmax, softmax

from common.diagnose.explain.activation_difference import INVERSES
from common.diagnose.explain.sums import Terms
from common.diagnose.findings import Explanation
from common.diagnose.rounding import EXPLANATION_TOLERANCE, is_close

LARGEST_CONDITION = 1e6  # largest condition number of the rows that leaves the recovered weights enough digits
LEAST_WEIGHT = 1e-12  # smallest weight, relative to the largest; smaller ones are rounding errors of masked elements
FITTED_ELEMENTS = 2000  # number of elements to which the scores are fitted
SCORE_TOLERANCE = 1e-5  # tolerance of recovered scores, because a small weight has few digits

Axes = tuple[int, ...]


def explain_softmax(title: str, a: np.ndarray, b: np.ndarray, axes: Sequence[str] | None = None) -> Explanation | None:
    """Explain how a = softmax_a(scores) and b = softmax_b(scores), or b = c * scores, differ, or return None.

    Args:
        title: Name of the softmax in reports.
        a: A's probabilities.
        b: B's array, which may have no softmax.
        axes: Names of the axes in reports; None numbers them.
    """
    names = [f"axis {axis}" for axis in range(a.ndim)] if axes is None else axes
    axes_a, axes_b = _find_axes(a), _find_axes(b)
    if axes_a is None:
        return None
    known_a, known_b = a > 0, b > 0
    scores_a = np.log(np.where(known_a, a, 1.0))
    if axes_b is None:
        return _explain_no_softmax(title, scores_a, b, axes_a) if known_a.all() else None
    scores_b = np.log(np.where(known_b, b, 1.0))
    is_known = known_a & known_b
    if axes_a != axes_b:
        joined_a, joined_b = (" and ".join(names[axis] for axis in joined) for joined in (axes_a, axes_b))
        sentence = f"{title} is over {joined_a} in A and over {joined_b} in B"
        is_same = fits_constants(scores_b - scores_a, is_known, (axes_a, axes_b))
        return Explanation("softmax_axis", sentence) if is_same and np.array_equal(known_a, known_b) else None
    if not np.array_equal(known_a, known_b):
        return _explain_masks(title, scores_b - scores_a, known_a, known_b, axes_a)
    centered_a, centered_b = (_center(scores, is_known, axes_a) for scores in (scores_a, scores_b))
    factor = float((centered_a * centered_b).sum() / (centered_a**2).sum()) if centered_a.any() else 0.0
    if factor and is_close(centered_a * factor, centered_b, SCORE_TOLERANCE):
        return Explanation("attention_scale", f"{title}: its scores are {factor:.6g} times A's in B")
    return None


def _explain_masks(
    title: str, difference: np.ndarray, known_a: np.ndarray, known_b: np.ndarray, axes: Axes
) -> Explanation | None:
    """Explain the difference by masks. Return None if the scores of unmasked elements do not differ by a constant.

    A softmax along `axes` in which all elements are masked has equal probabilities.
    """
    is_partial = ~(known_a.all(axes, keepdims=True) | known_b.all(axes, keepdims=True)) & np.ones_like(known_a)
    has_several = known_a.sum(axes).max() > 1 or bool((known_a & known_b).any())  # labels and top-1 gates have one
    if has_several and is_partial.any() and (known_a != known_b)[is_partial].all():
        return Explanation("attention_mask", f"{title} masks in B exactly the elements that A does not mask")
    sentence = f"{title} masks {(~known_a).sum()} elements in A and {(~known_b).sum()} in B"
    return Explanation("attention_mask", sentence) if fits_constants(difference, known_a & known_b, (axes,)) else None


def explain_weighted_sum(place: str, a: np.ndarray, b: np.ndarray, terms: Terms) -> Explanation | None:
    """Explain how the weights in a = weights_a @ rows and b = weights_b @ rows differ, as in attention.

    The weights can be recovered if an example has at most as many rows as features. An activation that has an inverse
    may follow on both sides.

    Args:
        place: Place of the sum in reports.
        a: A's sums [n, ..., features].
        b: B's sums, of the same shape.
        terms: Earlier arrays [n, ..., features] with their titles.
    """
    for title, array in reversed(terms):
        if a.ndim < 2 or array.ndim < 3 or len(array) != len(a) or array.shape[-1] != a.shape[-1]:
            continue
        rows = array.reshape(len(array), -1, array.shape[-1])
        inverse = _invert(rows) if 1 < rows.shape[1] <= rows.shape[2] else None
        if inverse is None:
            continue
        for sums_a, sums_b in _list_arguments(a, b):
            weights_a = _recover_weights(sums_a, rows, inverse)
            weights_b = _recover_weights(sums_b, rows, inverse) if weights_a is not None else None
            if weights_a is not None and weights_b is not None:
                axes = "the examples", "the sums", "the rows of each sum"
                softmax_title = f"{place}: the softmax that weights the rows of {title}"
                if explanation := explain_softmax(softmax_title, weights_a, weights_b, axes):
                    return explanation
    return None


def _list_arguments(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (a, b), and (f_inverse(a), f_inverse(b)) for each activation f that has an inverse."""
    yield a, b
    with np.errstate(all="ignore"):
        for invert in INVERSES.values():
            arguments = invert(a), invert(b)
            if all(np.isfinite(argument).all() for argument in arguments):
                yield arguments


def _invert(rows: np.ndarray) -> np.ndarray | None:
    """Return the pseudoinverse [n, features, rows], or None if the rows are so similar that it has too few digits."""
    u, singular_values, v = np.linalg.svd(rows, full_matrices=False)
    if not (singular_values[:, 0] < LARGEST_CONDITION * singular_values[:, -1]).all():
        return None
    inverse: np.ndarray = (v.swapaxes(1, 2) / singular_values[:, None]) @ u.swapaxes(1, 2)
    return inverse


def _recover_weights(result: np.ndarray, rows: np.ndarray, inverse: np.ndarray) -> np.ndarray | None:
    """Return the weights [n, sums, rows] of the rows in each sum, or None if the result is not a sum of the rows."""
    sums = result.reshape(len(result), -1, result.shape[-1])
    weights = sums @ inverse
    if not is_close(weights @ rows, sums):
        return None
    return np.where(np.abs(weights) < LEAST_WEIGHT * np.abs(weights).max(), 0.0, weights)


def list_axes(count: int) -> list[Axes]:
    """Return the axes along which an array may have vectors: single axes, and some axes together.

    Args:
        count: Number of axes of the array. The first one has the examples.
    """
    joined = [tuple(range(*ends)) for ends in ((1, count - 1), (2, count), (1, count))]
    return [*((axis,) for axis in range(count)), *dict.fromkeys(axes for axes in joined if len(axes) > 1)]


def _find_axes(array: np.ndarray) -> Axes | None:
    """Return the axes along which an array has probabilities, or None. If several fit, return the longest."""
    if not np.isfinite(array).all() or array.min() < 0:
        return None
    tolerance = EXPLANATION_TOLERANCE["float32" if array.dtype == np.float32 else "float64"]
    fitting = [axes for axes in list_axes(array.ndim) if np.allclose(array.sum(axes), 1, rtol=0, atol=tolerance)]
    return max(fitting, key=lambda axes: np.prod([array.shape[axis] for axis in axes]), default=None)


def _explain_no_softmax(title: str, scores_a: np.ndarray, b: np.ndarray, axes: Axes) -> Explanation | None:
    """Check whether B's array is A's scores times a factor."""
    known = np.ones(b.shape, bool)
    centered_a, centered_b = (_center(scores, known, axes) for scores in (scores_a, b))
    if not centered_b.any():
        return None
    factor = float((centered_a * centered_b).sum() / (centered_b**2).sum())
    if not is_close(softmax(factor * b, axes), np.exp(scores_a), SCORE_TOLERANCE):
        return None
    scaled = "" if np.isclose(factor, 1) else f", but {1 / factor:.6g} times the scores"
    return Explanation("activation", f"{title}: B has none{scaled}")


def _center(scores: np.ndarray, is_known: np.ndarray, axes: Axes) -> np.ndarray:
    """Return scores - mean(scores) along axes, with zeros at the elements that are not known."""
    count = np.maximum(is_known.sum(axes, keepdims=True), 1)
    return np.where(is_known, scores - np.where(is_known, scores, 0.0).sum(axes, keepdims=True) / count, 0.0)


def fits_constants(difference: np.ndarray, is_known: np.ndarray, constant_axes: Sequence[Axes]) -> bool:
    """Check whether a difference is a sum of arrays, one for each group of axes, that are constant along these axes.

    Softmax divides by such a constant, so scores are recovered up to it. Only the first examples are checked, if
    there are many.
    """
    if not any(0 in axes for axes in constant_axes):
        count = max(1, FITTED_ELEMENTS // difference[0].size)
        difference, is_known = difference[:count], is_known[:count]
    if not is_known.any() or difference.size > 2 * FITTED_ELEMENTS:
        return False
    places = np.arange(difference.size).reshape(difference.shape)
    columns = []
    for axes in constant_axes:
        group = np.broadcast_to(places.min(axes, keepdims=True), places.shape)[is_known]
        columns.append((group[:, None] == np.unique(group)[None]).astype(float))
    matrix, values = np.concatenate(columns, 1), difference[is_known]
    coefficients, _, rank, _ = np.linalg.lstsq(matrix, values, rcond=None)
    if rank == len(values):  # any values would fit, for example if each row has a single element
        return False
    fitted = matrix @ coefficients
    return is_close(fitted, values, SCORE_TOLERANCE) or bool(np.abs(fitted - values).max() < SCORE_TOLERANCE)


def explain_log_softmax(place: str, a: np.ndarray, b: np.ndarray) -> Explanation | None:
    """Explain arrays of which one is the log_softmax of the other over the examples or another axis; else None.

    Both differ by the same array for each index of this axis. Over the last axis, log_softmax is an activation.
    """
    for axis in range(a.ndim - 1):
        for side, x, y in (("B", a, b), ("A", b, a)):
            if a.shape[axis] > 1 and is_close(log_softmax(x, axis), y):
                words = "the examples" if axis == 0 else f"axis {axis}"
                return Explanation(
                    "softmax_axis", f"{place}: {side} computes log_softmax over {words}", side=side.lower()
                )
    return None
