"""A factor by which an array of B is larger than A's, and the size of an axis that explains it.

A is the reference run of a diagnosis, and B the run that is compared with it.
"""

from collections.abc import Iterator

import numpy as np

from common.diagnose.explain.sums import Terms
from common.diagnose.findings import Explanation
from common.diagnose.rounding import is_close

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
