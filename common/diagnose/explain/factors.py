"""A factor by which an array of B is larger than A's, and the size of an axis that explains it.

A is the reference run of a diagnosis, and B the run that is compared with it.
"""

from collections.abc import Iterator

import numpy as np

from common.diagnose.explain.sums import Terms
from common.diagnose.findings import Explanation
from common.diagnose.rounding import is_close

LEAST_ROWS = 8  # smallest number of rows whose features may be compared by two numbers each
LINE_TOLERANCE = 1e-4  # largest relative error of a line: B's numbers may have lost digits to a larger shift
MOST_LISTED = 3
LEAST_SIZE_OF_ROOT = 8  # smallest size whose root is an explanation; roots such as sqrt(2) are common factors


def explain_factor(tensor: str, a: np.ndarray, b: np.ndarray, terms: Terms) -> Explanation | None:
    """Check whether B's array is a multiple of A's.

    Args:
        tensor: Name of the array in reports.
        a: A's array.
        b: B's array, of the same shape.
        terms: Earlier arrays with their titles. The size of an axis may explain the factor.
    """
    factor = float((a * b).sum() / (a * a).sum()) if a.any() else 0.0
    if not factor or not is_close(a * factor, b):
        return None
    reasons = (reason for reason, value in _list_reasons(terms) if np.isclose(factor, value, rtol=1e-9, atol=0))
    reason = next(reasons, "")
    return Explanation("scale", f"{tensor} is {factor:.6g} times A's{reason}")


def explain_lines(tensor: str, a: np.ndarray, b: np.ndarray) -> Explanation | None:
    """Check whether B's array is A's with each feature scaled and shifted, as by another mean and deviation.

    Args:
        tensor: Name of the array in reports.
        a: A's array [n, ..., features] or [n, features, ...].
        b: B's array, of the same shape.
    """
    for axis in (1, a.ndim - 1):
        lines = _fit_lines(*(np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis]).astype(np.float64) for x in (a, b)))
        if lines is None:
            continue
        factors, shifts = lines
        if all(np.allclose(x, x[0], rtol=0, atol=LINE_TOLERANCE * np.abs(x).max()) for x in lines):
            return Explanation("scaled_inputs", f"{tensor} is {factors[0]:.5g} times A's, plus {shifts[0]:.5g}")
        listed = [f"{factor:.4g} x {shift:+.4g}" for factor, shift in zip(factors, shifts, strict=True)]
        more = f" and {len(listed) - MOST_LISTED} more" if len(listed) > MOST_LISTED else ""
        sentence = f"{tensor} is A's with each feature x scaled and shifted, as by another mean and deviation: "
        return Explanation("normalization", f"{sentence}{', '.join(listed[:MOST_LISTED])}{more}")
    return None


def _fit_lines(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the factor and the shift of each column that turn A's rows into B's; None if they do not."""
    if len(a) < LEAST_ROWS:
        return None
    centred_a, centred_b = a - a.mean(0), b - b.mean(0)
    variances = (centred_a**2).mean(0)
    factors = (centred_a * centred_b).mean(0) / np.where(variances > 0, variances, 1)
    errors = np.abs(centred_a * factors - centred_b).max(0)
    largest = np.abs(b).max()
    if (factors[variances > 0] == 0).any() or not factors.any():
        return None  # a feature that is lost, such as a state in place of which there is padding
    if errors.max() > LINE_TOLERANCE * min(largest, np.abs(a - b).max()):
        return None
    shifts = b.mean(0) - factors * a.mean(0)
    return factors, np.where(np.abs(shifts) > LINE_TOLERANCE * largest, shifts, 0.0)


def _list_reasons(terms: Terms) -> Iterator[tuple[str, float]]:
    """Yield reasons, and the factors that they may explain."""
    for title, array in reversed(terms):
        for axis, size in enumerate(array.shape[1:], 1):  # axis 0, the examples, explains no factor
            place = f"the size of axis {axis} of {title}"
            if size > 1:
                yield f": perhaps {place}, as by a sum instead of a mean", size
                yield f": perhaps 1 / {place}, as by a mean instead of a sum", 1 / size
            if size >= LEAST_SIZE_OF_ROOT:
                yield f": perhaps the root of {place}", size**0.5
                yield f": perhaps 1 / the root of {place}", size**-0.5
