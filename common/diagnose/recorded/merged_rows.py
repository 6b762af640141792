"""Rows that a model makes of its examples: one row for each node of a graph or for each token of an example.

One script may list the rows of an example one after another, and the other script the first rows of all examples, then
the second ones. A layer that computes each row by itself returns the same for both.
"""

from collections.abc import Callable

import numpy as np

from common.map.description import RecordedCall


def arrange_rows(
    expected: RecordedCall, call: RecordedCall, count: int, are_close: Callable[[np.ndarray, np.ndarray], bool]
) -> RecordedCall:
    """Return A's call of a layer with its rows in the order of B's call, if only that makes their inputs equal.

    Args:
        expected: A's call, in B's layout.
        call: B's call.
        count: The number of examples.
        are_close: Checks whether two arrays are equal up to rounding.
    """
    a, b = expected.received, call.received
    if a is None or b is None or a.shape != b.shape or not count or len(a) <= count or len(a) % count:
        return expected
    if are_close(a, b):
        return expected
    for examples_first in (True, False):
        arranged = _swap(a, count, examples_first=examples_first)
        if are_close(arranged, b):
            returned = expected.returned
            if returned is not None and len(returned) == len(a):
                returned = _swap(returned, count, examples_first=examples_first)
            return RecordedCall(arranged, returned)
    return expected


def _swap(array: np.ndarray, count: int, *, examples_first: bool) -> np.ndarray:
    """Exchange the examples and the parts of examples that the first axis consists of.

    Args:
        array: [count * parts, ...], or [parts * count, ...].
        count: The number of examples.
        examples_first: Whether the first form is the array's.
    """
    sizes = (count, -1) if examples_first else (-1, count)
    return array.reshape(*sizes, *array.shape[1:]).swapaxes(0, 1).reshape(array.shape)


def has_merged_rows(outputs: np.ndarray, count: int) -> bool:
    """Check whether outputs [n * tokens, features] have all tokens of all examples in one axis."""
    return outputs.ndim == 2 and len(outputs) > count and len(outputs) % count == 0
