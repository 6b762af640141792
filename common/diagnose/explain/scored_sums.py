"""Differences between sums weights @ rows, as in additive attention and attention pooling.

The weights come from one score for each row, for example softmax(scores + mask).

A is the reference run of a diagnosis, and B the run that is compared with it. The scores are the output of a layer.
"""

from collections.abc import Iterator

import numpy as np
from scipy.special import expit, softmax

from common.diagnose.explain.activation_difference import LEAST_ELEMENTS
from common.diagnose.explain.code_section import CodeSection
from common.diagnose.findings import Explanation
from common.diagnose.rounding import is_close

NO_MASK = "no mask"
WEIGHTS = {
    "softmax over the rows": lambda scores: softmax(scores, 1),
    "sigmoid": expit,
    "no activation": lambda scores: scores,
}
Variant = tuple[str, str]  # the mask and the activation of the scores, in reports


@np.errstate(all="ignore")
def explain_scored_sum(section: CodeSection) -> Explanation | None:
    """Return how the masks or weights of A and B differ if both compute weights @ rows of an earlier array, or None."""
    a, b = section.a, section.b
    if a.ndim != 2 or a.size < LEAST_ELEMENTS:
        return None
    if not a.any() or not b.any():  # a mask of only zeros, or the inverse of only ones, gives zeros for any scores
        return None
    for score_title, scores in _list_scores(section):
        for title, rows in reversed(section.shared_terms):
            if rows.ndim != 3 or rows.shape[:2] != scores.shape or rows.shape[2] != a.shape[1] or rows.shape[1] < 2:
                continue
            variant_a = _find_variant(section, scores, rows, a)
            variant_b = _find_variant(section, scores, rows, b) if variant_a else None
            if variant_a and variant_b and variant_a != variant_b:
                place = f"{section.place}: the sum of the rows of {title}, weighted by {score_title}"
                is_mask = variant_a[0] != variant_b[0]
                has = [variant[0 if is_mask else 1] for variant in (variant_a, variant_b)]
                return Explanation(
                    "attention_mask" if is_mask else "activation", f"{place}, has {has[0]} in A and {has[1]} in B"
                )
    return None


def _list_scores(section: CodeSection) -> Iterator[tuple[str, np.ndarray]]:
    """Yield earlier arrays [n, rows] or [n, rows, 1] as [n, rows], the latest first, with their titles."""
    for title, array in reversed(section.shared_terms):
        if array.ndim == 3 and array.shape[2] == 1:
            yield title, array[..., 0]
        elif array.ndim == 2:
            yield title, array


def _find_variant(section: CodeSection, scores: np.ndarray, rows: np.ndarray, result: np.ndarray) -> Variant | None:
    """Return the mask and the activation f with result = f(scores, mask) @ rows."""
    masks = {NO_MASK: np.ones(scores.shape, bool)}
    for name, mask in section.masks.items():
        if mask.shape == scores.shape:
            masks |= {f"the mask {name}": mask.astype(bool), f"the inverse of the mask {name}": ~mask.astype(bool)}
    for mask_name, mask in masks.items():
        for name, compute in WEIGHTS.items():
            is_softmax = name == "softmax over the rows"
            weights = compute(np.where(mask, scores, -np.inf)) if is_softmax else compute(scores) * mask
            if np.isfinite(weights).all() and is_close((weights[:, None] @ rows)[:, 0], result):
                return mask_name, name
    return None
