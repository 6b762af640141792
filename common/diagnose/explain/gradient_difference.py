"""Reasons why a parameter's gradient differs between runs A and B although the loss is the same.

A is the reference run of a diagnosis, and B the run that is compared with it. An explanation's sentence continues
"NAME: ".
"""

import numpy as np

from common.diagnose.findings import Explanation
from common.diagnose.rounding import is_close
from common.map.array_differences import compute_norm


def explain_gradient(a: np.ndarray, b: np.ndarray, tolerance: float) -> Explanation:
    """Explain why B's gradient differs from A's.

    Args:
        a: Gradient in A, in PyTorch's layout.
        b: Gradient in B, of the same layout.
        tolerance: Relative difference up to which an explanation counts as exact.
    """
    for name, gradient in (("B", b), ("A", a)):
        if not gradient.any():
            sentence = f"its gradient is zero in {name}: frozen, or cut off from the loss"
            return Explanation("no_gradient", sentence, side=name.lower())
    if (np.isfinite(a) != np.isfinite(b)).any():
        sentence = f"its gradient is finite in {'A' if np.isfinite(a).all() else 'B'} only"
        return Explanation("not_finite", sentence)
    factor = float((a * b).sum() / (a * a).sum())
    if abs(factor - 1) > tolerance and factor and is_close(a * factor, b, tolerance):
        return Explanation("scaled_gradient", f"its gradient in B is {factor:.6g} times A's, and the loss is the same")
    if a.ndim == 2:
        limit = tolerance * compute_norm(a)
        rows = [row for row, difference in enumerate(a - b) if compute_norm(difference) > limit]
        run = next((name for name, gradient in (("A", a), ("B", b)) if not gradient[rows[:1]].any()), None)
        if run and len(rows) == 1:
            return Explanation("padding_row", f"row {rows[0]} gets no gradient in {run}, as with padding_idx")
    if a.shape == b.T.shape and is_close(a.T, b, tolerance):
        return Explanation("transposed_gradient", "its gradient in B is A's transposed")
    return Explanation("gradient", "its gradient differs though the loss is the same", confirmed=False)
