"""Layers that do not return the same in two passes on the same variables, because they draw random numbers."""

from collections.abc import Mapping, Sequence

import numpy as np

from common.map.array_differences import relative_difference
from common.map.description import RecordedCall

TOLERANCE = 1e-9  # above the rounding errors of a float64 pass whose sums are in another order


def find_random_layers(
    first_pass: Mapping[str, RecordedCall], second_pass: Mapping[str, RecordedCall], dropout_functions: Sequence[str]
) -> list[str]:
    """Return the layers that draw random numbers, as "path (function)".

    Args:
        first_pass: The calls of layers by path, in the order in which they returned.
        second_pass: The calls of another pass on the same variables and inputs.
        dropout_functions: The layers that call dropout functions, which dropped nothing in both passes.
    """
    random_layers = list(dropout_functions)
    for path, call in first_pass.items():
        other = second_pass.get(path, RecordedCall(None, None))
        if _is_equal(call.received, other.received) and not _is_equal(call.returned, other.returned):
            random_layers.append(f"{path} (random numbers)")
            break  # the layers around it differ too
    return random_layers


def _is_equal(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and relative_difference(a, b) <= TOLERANCE
