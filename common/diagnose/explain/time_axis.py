"""Recurrent layers that read the axis of examples as the time axis, such as PyTorch's without `batch_first=True`.

A is the reference run of a diagnosis, and B the run that is compared with it.
"""

from collections.abc import Mapping

import numpy as np

from common.diagnose.explain.code_section import CodeSection
from common.diagnose.explain.gates import compute_states
from common.diagnose.explain.reductions import list_reduced
from common.diagnose.findings import Explanation
from common.diagnose.rounding import is_close

FIRST_WEIGHT = ".weight_hh_l0"  # end of the name of a recurrent layer's first weight, after the layer's name


def explain_time_axis(section: CodeSection) -> Explanation | None:
    """Check whether the code receives states of one side's recurrent layer that took the examples for the time."""
    names = [name.removesuffix(FIRST_WEIGHT) for name in section.weights if name.endswith(FIRST_WEIGHT)]
    for output in reversed(section.earlier_outputs):
        x = output.received_in_a
        if x is None or x.ndim != 3 or x.dtype.kind != "f":
            continue
        for name in names:
            if explanation := compare_time_axes(name, section.weights, x, (section.a, section.b)):
                return Explanation(explanation.cause, f"{output.title}: {explanation.sentence}")
    return None


def compare_time_axes(
    name: str, weights: Mapping[str, np.ndarray], x: np.ndarray, results: tuple[np.ndarray, np.ndarray]
) -> Explanation | None:
    """Check whether A and B have the states of one recurrent layer over other axes of its input.

    Args:
        name: Name of the layer, the prefix of the names of its weights.
        weights: Weights by PyTorch's parameter names.
        x: Input [n, tokens, features] of both sides.
        results: States [n, tokens, units] of A and of B, or last states [n, units].
    """
    first = compute_states(name, weights, x[:1])
    if first is None or not any(_has_states(result[:1], first) for result in results):
        return None  # without computing the states of all examples
    states, swapped = compute_states(name, weights, x), compute_states(name, weights, x.swapaxes(0, 1))
    assert states is not None and swapped is not None
    axes = [[_has_states(result, swapped.swapaxes(0, 1)), _has_states(result, states)] for result in results]
    for side, own, other in (("A", *axes), ("B", *reversed(axes))):
        if own == [True, False] and other == [False, True]:
            sentence = f"{side}'s layer takes axis 0 for the time, which has the examples: is batch_first=True missing?"
            return Explanation("time_axis", sentence)
    return None


def _has_states(result: np.ndarray, states: np.ndarray) -> bool:
    """Check whether a result is the states [n, tokens, units], or a reduction of them to one for each example."""
    return any(is_close(reduced, result) for _, reduced in list_reduced(states, result.shape))
