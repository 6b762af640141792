"""Gated units: an activation of one half of a layer's features, times an activation of the other half.

A is the reference run of a diagnosis, and B the run that is compared with it.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np

from common.diagnose.explain.activation_difference import ACTIVATIONS
from common.diagnose.explain.code_section import CodeSection
from common.diagnose.findings import Explanation
from common.diagnose.rounding import is_close

Halves = tuple[np.ndarray, np.ndarray]


def explain_gated_halves(section: CodeSection) -> Explanation | None:
    """Check whether A and B compute two gated units from the halves of the output of one of the last layers."""
    for title, output in reversed(section.known_outputs):
        for halves in _list_halves(output, section.a.shape):
            unit_a = _find_unit(halves, section.a)
            unit_b = _find_unit(halves, section.b) if unit_a else None
            if unit_a and unit_b and unit_a != unit_b:
                sentence = f"between {title} and {section.title}: A has {unit_a}, B {unit_b}"
                return Explanation("activation", sentence)
    return None


def _list_halves(output: np.ndarray, shape: tuple[int, ...]) -> Iterator[Halves]:
    """Yield the halves of an output along each axis along which they have a shape."""
    for axis in range(1, min(output.ndim, len(shape))):
        if output.shape == (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :]):
            first, second = np.split(output, 2, axis)
            yield first, second


@np.errstate(all="ignore")
def _find_unit(halves: Halves, result: np.ndarray) -> str | None:
    """Return the product of activations that computes the result from two halves. One example is tried first."""
    first, second = halves
    for (name_1, activate_1), (name_2, activate_2) in product(ACTIVATIONS.items(), repeat=2):
        is_unit = is_close(activate_1(first[:1]) * activate_2(second[:1]), result[:1])
        if is_unit and is_close(activate_1(first) * activate_2(second), result):
            return f"{name_1} of the first half of the features, times {name_2} of the second half"
    return None
