"""Rows of padding: a script may mask them or not, and neither the loss nor the other rows depend on them."""

from collections.abc import Callable, Sequence

import numpy as np


def hide_padding(
    a: np.ndarray, b: np.ndarray, tokens: Sequence[np.ndarray], are_close: Callable[[np.ndarray, np.ndarray], bool]
) -> np.ndarray:
    """Return B's array with A's numbers in the rows of padding, if the arrays differ in nothing else.

    Args:
        a: A's array: [n, tokens, ...], [n * tokens, ...] or [n, heads, tokens, ...].
        b: B's array.
        tokens: Arrays [n, tokens] of integers that the model receives. Zeros at the end or the begin are padding.
        are_close: Checks whether two arrays are equal up to rounding.
    """
    if not tokens or a.shape != b.shape or are_close(a, b):
        return b
    for ids in tokens:
        padding = _find_padding(ids)
        forms = [((0, 1), padding), ((0, 2), padding), ((0,), padding.reshape(-1))]
        for axes, rows in forms:
            sizes = tuple(a.shape[axis] for axis in axes if axis < a.ndim)
            if sizes != rows.shape or not rows.any():
                continue
            shape = [size if axis in axes else 1 for axis, size in enumerate(a.shape)]
            hidden = np.where(rows.reshape(shape), a, b)
            if are_close(a, hidden):
                return hidden
    return b


def _find_padding(ids: np.ndarray) -> np.ndarray:
    """Return a mask [n, tokens] of the zeros at the end of each row, or at its begin if no row ends with zeros."""
    is_zero = ids == 0
    at_end = np.flip(np.logical_and.accumulate(np.flip(is_zero, 1), axis=1), 1)
    return at_end if at_end.any() else np.logical_and.accumulate(is_zero, axis=1)
