"""Outputs of the tokens of all examples in one axis, as packed sequences have them, beside outputs with padded tokens.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from common.diagnose.recorded.example_order import ArrayPair
from common.diagnose.recorded.losses.label_forms import list_labels
from common.diagnose.recorded.recorded_side import RecordedSide


def arrange_packed(array: ArrayPair, sides: Sequence[RecordedSide], step: int) -> ArrayPair | None:
    """Return an output with the rows of the padded side in the packed side's order; None if no side's is packed.

    The labels show which rows are padding, and the order of the others.

    Args:
        array: The output: [rows, ...] of one side, and [n, tokens, ...] of the other one.
        sides: Both sides.
        step: The step.
    """
    micro_batches = [side.batches.list_micro_batches(step) for side in sides]
    if any(len(x) != 1 for x in micro_batches):
        return None
    labels_a, labels_b = (list_labels(side, step, x[0]) for side, x in zip(sides, micro_batches, strict=True))
    if array.a.ndim + 1 == array.b.ndim:
        arranged = _arrange(array.a, array.b, labels_a, labels_b)
        return None if arranged is None else replace(array, b=arranged)
    arranged = _arrange(array.b, array.a, labels_b, labels_a)
    return None if arranged is None else replace(array, a=arranged)


def _arrange(
    packed: np.ndarray, padded: np.ndarray, of_rows: Sequence[np.ndarray], of_tokens: Sequence[np.ndarray]
) -> np.ndarray | None:
    """Return the rows of padded outputs [n, tokens, ...] that belong to packed ones [rows, ...]; None if unknown.

    Args:
        packed: The packed outputs.
        padded: The padded outputs.
        of_rows: Labels of the packed side.
        of_tokens: Labels of the padded side. The label 0 is padding.
    """
    if padded.ndim != packed.ndim + 1 or padded.shape[2:] != packed.shape[1:]:
        return None
    for labels, padded_labels in product(of_rows, of_tokens):
        if labels.shape != packed.shape[:1] or padded_labels.shape != padded.shape[:2]:
            continue
        for examples, tokens in _list_orders(padded_labels):
            if np.array_equal(padded_labels[examples, tokens], labels):
                return padded[examples, tokens]
    return None


def _list_orders(labels: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield examples and tokens of the labels [n, tokens] other than 0: by example, and the first tokens of all first.

    A packed sequence begins with the longest example.
    """
    examples, tokens = np.nonzero(labels)
    yield examples, tokens
    longest = np.argsort(-(labels != 0).sum(1), kind="stable")
    tokens, positions = np.nonzero(labels[longest].T)
    yield longest[positions], tokens
