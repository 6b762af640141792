"""Differences that the code between two layers only passes on, because an array that it receives differs already.

A is the reference run of a diagnosis, and B the run that is compared with it. In the isolated
computation the layers of B receive A's inputs, so no layer passes a difference on. A path around a layer, such as a
residual connection, still does.
"""

from collections.abc import Callable, Iterator
from itertools import islice, product

import numpy as np

from common.diagnose.explain.code_section import EARLIER_LAYERS, CodeSection
from common.diagnose.explain.reductions import list_reduced
from common.diagnose.rounding import is_close

LEAST_ACTIVE_OF_SUM = 0.1  # smallest share of elements that ReLU must keep so that a sum before it is recognized
POOLINGS: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    lambda x: x.mean(tuple(range(1, x.ndim - 1))),
    lambda x: x.max(tuple(range(1, x.ndim - 1))),
    lambda x: x[:, 0],
    lambda x: x[:, -1],
)


def is_inherited(section: CodeSection) -> bool:
    """Check whether both sides compute the same from an earlier array that differs already.

    The code may add other arrays to the earlier array, with or without ReLU after the sum, and pool the sum. Or it may
    multiply the earlier array by the output of a layer.
    """
    return any(
        _is_in_sum(section, a, b) or _is_in_pooled_sum(section, a, b) or _is_in_product(section, a, b)
        for a, b in _list_differing(section)
    )


def _list_differing(section: CodeSection) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield what earlier layers received in A and in B if it differs."""
    for output in reversed(section.earlier_outputs):
        a, b = output.received_in_a, output.received_in_b
        if a is not None and b is not None and a.dtype.kind == "f" and not is_close(a, b):
            yield a, b


def _is_in_sum(section: CodeSection, a: np.ndarray, b: np.ndarray) -> bool:
    """Check whether section.b - section.a equals b - a, or a reduction of it such as a mean. ReLU may follow.

    What both sides add to a and b need not be known.
    """
    is_active = section.a > 0  # ReLU hides what the other elements were
    may_be_relu = is_active.mean() > LEAST_ACTIVE_OF_SUM and not (section.a < 0).any()
    for _, change in list_reduced(b - a, section.a.shape):
        expected = section.a + change
        if is_close(expected, section.b):
            return True
        if may_be_relu and is_close(np.maximum(expected, 0)[is_active], section.b[is_active]):
            return True
    return False


def _is_in_pooled_sum(section: CodeSection, a: np.ndarray, b: np.ndarray) -> bool:
    """Check whether the section is the pooled ReLU of one of two arrays, to which an earlier array may be added."""
    if section.a.ndim != 2 or a.ndim < 3 or a.shape[-1] != section.a.shape[-1]:
        return False
    terms = [array for _, array in section.shared_terms if array.shape == a.shape]
    for term in (0.0, *reversed(terms)):
        for pool in POOLINGS:
            pooled_a, pooled_b = (pool(np.maximum(array + term, 0)) for array in (a, b))
            if is_close(pooled_a, section.a) and is_close(pooled_b, section.b):
                return True
    return False


def _is_in_product(section: CodeSection, a: np.ndarray, b: np.ndarray) -> bool:
    """Check whether both sides multiply a differing array by the output of one of the last layers.

    They may also add a differing array, as the layers of a cross network do: first * layer(x) + x.
    """
    if a.shape != section.a.shape:
        return False
    latest = [pair for pair in islice(_list_differing(section), EARLIER_LAYERS) if pair[0].shape == a.shape]
    changes = [0.0, b - a, *(other_b - other_a for other_a, other_b in latest)]
    factors = [output for _, output in section.known_outputs if output.shape == a.shape]
    return any(
        is_close(section.a + (b - a) * factor + change, section.b) for factor, change in product(factors, changes)
    )
