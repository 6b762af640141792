"""Explanation of a missing function of vectors, such as L2 normalization, squash or softmax along an axis.

A is the reference run of a diagnosis, and B the run that is compared with it.
"""

from collections.abc import Callable, Iterator
from itertools import permutations

import numpy as np
from scipy.special import log_softmax, softmax

from common.diagnose.explain.softmax_axis import Axes, fits_constants, list_axes
from common.diagnose.findings import Explanation
from common.diagnose.rounding import is_close

VectorFunction = Callable[[np.ndarray, Axes], np.ndarray]

TOLERANCE = 1e-5  # relative tolerance; the code may add an epsilon to a norm
AXES_OF_VECTORS = " over "  # between the name of a function and its axes in reports
NORMALIZATION, SQUASH = "L2 normalization", "squash"


def _compute_norm(x: np.ndarray, axes: Axes) -> np.ndarray:
    return np.sqrt(np.square(x).sum(axes, keepdims=True))


def _divide_by_norm(x: np.ndarray, axes: Axes) -> np.ndarray:
    """Return vectors of length 1, and zeros if a vector has only zeros, as both frameworks do."""
    norms = _compute_norm(x, axes)
    return np.asarray(x / np.where(norms > 0, norms, 1.0))


def _center(x: np.ndarray, axes: Axes) -> np.ndarray:
    return np.asarray(x - x.mean(axes, keepdims=True))


# By name in reports
VECTOR_FUNCTIONS: dict[str, VectorFunction] = {
    "softmax": lambda x, axes: softmax(x, axes),
    "log_softmax": lambda x, axes: log_softmax(x, axes),
    NORMALIZATION: lambda x, axes: _divide_by_norm(x, axes),
    SQUASH: lambda x, axes: x * _compute_norm(x, axes) / (1 + _compute_norm(x, axes) ** 2),
    "division by the root of the mean square": lambda x, axes: x / np.sqrt(np.square(x).mean(axes, keepdims=True)),
    "division by the sum": lambda x, axes: x / x.sum(axes, keepdims=True),
    "division by the sum of the absolute values": lambda x, axes: x / np.abs(x).sum(axes, keepdims=True),
    "subtraction of the mean": _center,
}


@np.errstate(all="ignore")
def explain_vector_function(place: str, a: np.ndarray, b: np.ndarray) -> Explanation | None:
    """Explain that only one side applies a function of vectors, or that both sides apply it along different axes.

    Args:
        place: Place of the code in reports.
        a: A's array [n, ...].
        b: B's array, of the same shape.
    """
    if a.ndim < 2 or not np.isfinite(a).all() or not np.isfinite(b).all():
        return None
    for side, other, result, x in (("A", "B", a, b), ("B", "A", b, a)):
        if described := find_vector_function(x, result):
            return Explanation("vector_function", f"{place}: {side} has {described} at the end, {other} does not")
    return _explain_axes(place, a, b)


@np.errstate(all="ignore")
def find_vector_function(x: np.ndarray, result: np.ndarray) -> str | None:
    """Return the name and the axes of the function of vectors that computes the result from x, or None."""
    if x.shape != result.shape or not x.any() or not result.any() or is_close(x, result):
        return None
    for axes in list_axes(x.ndim):
        if np.prod([x.shape[axis] for axis in axes]) < 2:
            continue
        names = (name for name, function in VECTOR_FUNCTIONS.items() if _computes(function, x, axes, result))
        if name := next(names, None) or _find_standardization(x, axes, result):
            return f"{name}{AXES_OF_VECTORS}{_join_axes(axes)}"
    return None


def _computes(function: VectorFunction, x: np.ndarray, axes: Axes, result: np.ndarray) -> bool:
    """Check whether a function computes the result from x, first for some vectors alone."""
    sample, sampled_result = (_take_some_vectors(array, axes) for array in (x, result))
    return is_close(function(sample, axes), sampled_result, TOLERANCE) and is_close(
        function(x, axes), result, TOLERANCE
    )


def _take_some_vectors(array: np.ndarray, axes: Axes) -> np.ndarray:
    """Return the vectors along these axes at the first two places of the other axes."""
    return array[tuple(slice(None) if axis in axes else slice(2) for axis in range(array.ndim))]


def _find_standardization(x: np.ndarray, axes: Axes, result: np.ndarray) -> str | None:
    """Check whether the result is (x - mean) / sqrt(variance + epsilon), as of a normalization without parameters."""
    sample, sampled_result = (_take_some_vectors(array, axes) for array in (x, result))
    centered, norms = _center(sample, axes), _compute_norm(sampled_result, axes)
    variances = np.square(centered).mean(axes, keepdims=True)
    is_known = (norms > 0) & (variances > 0)
    if not is_known.any():
        return None
    epsilons = np.square(_compute_norm(centered, axes)[is_known] / norms[is_known]) - variances[is_known]
    epsilon = max(float(np.median(epsilons)), 0.0)
    if not _computes(lambda array, axes: _standardize(array, axes, epsilon), x, axes, result):
        return None
    is_measured = epsilon > TOLERANCE * np.median(variances[is_known])
    return f"standardization{f' with epsilon {epsilon:.3g}' if is_measured else ''}"


def _standardize(x: np.ndarray, axes: Axes, epsilon: float) -> np.ndarray:
    centered = _center(x, axes)
    divisors = np.sqrt(np.square(centered).mean(axes, keepdims=True) + epsilon)
    return np.asarray(centered / np.where(divisors > 0, divisors, 1.0))


def _join_axes(axes: Axes) -> str:
    return " and ".join(f"axis {axis}" for axis in axes)


def _explain_axes(place: str, a: np.ndarray, b: np.ndarray) -> Explanation | None:
    """Check whether both sides apply one function to the vectors of the same array, along other axes."""
    normalized_a, normalized_b = (list(_list_normalized_axes(array)) for array in (a, b))
    for axes_a in normalized_a:
        for axes_b in normalized_b:
            if axes_a != axes_b and np.array_equal(np.sign(a), np.sign(b)) and _have_one_argument(a, b, axes_a, axes_b):
                return _describe_axes(place, NORMALIZATION, axes_a, axes_b)
    for axes_a, axes_b in permutations(list_axes(a.ndim), 2):
        some_a, some_b = (_take_some_vectors(array, axes_a + axes_b) for array in (a, b))
        if _are_squashed(some_a, some_b, axes_a, axes_b) and _are_squashed(a, b, axes_a, axes_b):
            return _describe_axes(place, SQUASH, axes_a, axes_b)
    return None


def _are_squashed(a: np.ndarray, b: np.ndarray, axes_a: Axes, axes_b: Axes) -> bool:
    """Check whether a and b are squash of one array along these axes."""
    x = _invert_squash(a, axes_a)
    return x is not None and is_close(VECTOR_FUNCTIONS[SQUASH](x, axes_b), b, TOLERANCE)


def _describe_axes(place: str, name: str, axes_a: Axes, axes_b: Axes) -> Explanation:
    sentence = f"{place}: {name} is over {_join_axes(axes_a)} in A and over {_join_axes(axes_b)} in B"
    return Explanation("vector_function", sentence)


def _list_normalized_axes(array: np.ndarray) -> Iterator[Axes]:
    """Yield the axes along which all vectors, except vectors of zeros, have the length 1."""
    for axes in list_axes(array.ndim):
        if all(_is_normalized(vectors, axes) for vectors in (_take_some_vectors(array, axes), array)):
            yield axes


def _is_normalized(array: np.ndarray, axes: Axes) -> bool:
    norms = _compute_norm(array, axes)
    is_vector = norms.size < array.size and bool(norms.any())
    return is_vector and is_close(norms, np.where(norms > 0, 1.0, 0.0), TOLERANCE)


def _have_one_argument(a: np.ndarray, b: np.ndarray, axes_a: Axes, axes_b: Axes) -> bool:
    """Check whether log|a| - log|b| is a sum of two arrays that are constant along the axes of each side."""
    is_known = a != 0
    difference = np.log(np.where(is_known, np.abs(a), 1.0)) - np.log(np.where(is_known, np.abs(b), 1.0))
    return fits_constants(difference, is_known, (axes_a, axes_b))


def _invert_squash(result: np.ndarray, axes: Axes) -> np.ndarray | None:
    """Return the x with squash(x) = result; None if no x has this result."""
    norms = _compute_norm(result, axes)
    if norms.max() >= 1 or norms.size == result.size:
        return None
    lengths = np.sqrt(norms / (1 - norms))
    return np.asarray(result * np.where(norms > 0, lengths / norms, 0.0))
