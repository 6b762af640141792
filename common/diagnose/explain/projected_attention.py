"""Variants of attention between layers whose outputs are query, key and value.

A is the reference run of a diagnosis, and B the run that is compared with it.
"""

from itertools import combinations

import numpy as np

from common.diagnose.explain.attention import find_attention
from common.diagnose.explain.code_section import EARLIER_LAYERS, CodeSection
from common.diagnose.findings import Explanation
from common.diagnose.unpadded_tokens import unpack_tokens

PROJECTIONS = 3  # query, key and value
MOST_SCORES = 2**23  # largest number of scores of a head; more do not fit into memory


def explain_projected_attention(section: CodeSection) -> list[Explanation] | None:
    """Explain the differences of A's and B's attention. Return None if the code is not a known variant of attention.

    Three of the last four layers must be the projections of query, key and value. The code may add another array to
    the attention, with ReLU after the sum.
    """
    for join_axes in (_join_places, _join_heads):
        outputs = [
            join_axes(unpack_tokens(output.returned, section.batch))
            for output in section.earlier_outputs[-EARLIER_LAYERS:]
            if output.returned is not None
        ]
        for projections in combinations(reversed(outputs), PROJECTIONS):
            value, key, query = projections
            if query.ndim != 3 or any(array.shape != query.shape for array in projections):
                continue
            if len(query) * query.shape[1] ** 2 > MOST_SCORES:
                continue
            attended = _divide_tokens(section, query.shape)
            if attended is None:
                continue
            others = [array for array in outputs if not any(array is other for other in projections)]
            for roles in ((query, key, value), (query, value, key), (key, value, query)):
                for addend in (np.zeros(query.shape), *(array for array in others if array.shape == query.shape)):
                    if (explanations := _compare_attentions(section, roles, attended, addend)) is not None:
                        return explanations
    return None


def _compare_attentions(
    section: CodeSection,
    projections: tuple[np.ndarray, np.ndarray, np.ndarray],
    attended: tuple[np.ndarray, np.ndarray],
    addend: np.ndarray,
) -> list[Explanation] | None:
    """Explain the differences of two sums of attention and `addend`. Return None if an array is not such a sum."""
    has_relu = not any((array < 0).any() for array in attended)
    variants: list[dict[str, str]] = []
    for array in attended:
        variant = find_attention(projections, section.masks, array - addend, array > 0 if has_relu else None)
        if variant is None:
            return None
        variants.append(variant)
    a, b = variants
    sentence = "before {}: attention's {} is {} in A and {} in B"
    return [
        Explanation(f"attention_{name}", sentence.format(section.title, name, a[name], b[name]))
        for name in a
        if a[name] != b[name]
    ]


def _divide_tokens(section: CodeSection, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the arrays of A and B in `shape`, [n, tokens, features]; None if the number of elements differs."""
    a, b = (unpack_tokens(array, section.batch) for array in (section.a, section.b))
    return (a.reshape(shape), b.reshape(shape)) if a.size == np.prod(shape) and len(a) == shape[0] else None


def _join_places(array: np.ndarray) -> np.ndarray:
    """Flatten an array [n, height, width, features] to [n, pixels, features]. Return other arrays unchanged."""
    return array.reshape(len(array), -1, array.shape[-1]) if array.ndim > 3 else array


def _join_heads(array: np.ndarray) -> np.ndarray:
    """Flatten an array [n, tokens, heads, features] to [n, tokens, all features]. Return other arrays unchanged."""
    return array.reshape(*array.shape[:2], -1) if array.ndim == 4 else array
