"""Sums of a few arrays, such as residual connections, that the code between two layers computes."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from common.diagnose.rounding import is_close

Terms = Sequence[tuple[str, np.ndarray]]  # arrays with their titles in reports
Sum = dict[str, float]  # factors by title

MOST_ADDENDS = 3
FITTED_ELEMENTS = 2000  # number of elements to which the factors are fitted
SIMPLE_FACTORS = (1.0, -1.0, 0.5, 2.0)


def find_sum(terms: Terms, result: np.ndarray) -> Sum | None:
    """Return factors f by title with result = sum(f * term), over the fewest terms; None if there are none.

    Terms of other shapes than the result's are left out. Later terms are preferred.
    """
    if not np.isfinite(result).all():
        return None
    if result.dtype == np.float16:  # NumPy solves no equations with such numbers
        result, terms = result.astype(np.float32), [(title, array.astype(np.float32)) for title, array in terms]
    fitting = [(title, array) for title, array in reversed(terms) if array.shape == result.shape]
    for count in range(1, MOST_ADDENDS + 1):
        for chosen in combinations(fitting, count):
            columns = np.stack([array.ravel()[:FITTED_ELEMENTS] for _, array in chosen], 1)
            factors = np.linalg.lstsq(columns, result.ravel()[:FITTED_ELEMENTS], rcond=None)[0]
            simple = [_round_factor(factor) for factor in factors.tolist()]
            total = np.sum([factor * array for factor, (_, array) in zip(simple, chosen, strict=True)], axis=0)
            if all(simple) and is_close(total, result):
                return {title: factor for factor, (title, _) in zip(simple, chosen, strict=True)}
    return None


def compute_sum(factors: Sum, terms: Terms) -> np.ndarray | None:
    """Return the sum of the terms times these factors, or None if a term is missing."""
    arrays = dict(terms)
    if not factors.keys() <= arrays.keys():
        return None
    return np.asarray(np.sum([factor * arrays[title] for title, factor in factors.items()], axis=0))


def describe_sum(factors: Sum) -> str:
    """Return the sum as text, such as "the input of norm1 + the output of attention"."""
    text = ""
    for title, factor in reversed(factors.items()):
        sign = " - " if factor < 0 else " + " if text else ""
        size = "" if abs(factor) == 1 else f"{abs(factor):.6g} times "
        text += f"{sign}{size}{title}"
    return text.strip()


def _round_factor(factor: float) -> float:
    return next((simple for simple in SIMPLE_FACTORS if abs(factor - simple) < 1e-9), factor)
