"""Activations within layers of a script's own class.

A layer of Keras may have an activation, without which its output is recorded. The counterpart in PyTorch may be a class
of the script that computes the same activation, so that its output has passed it.
"""

import numpy as np

from common.diagnose.explain.activation_difference import find_activation
from common.diagnose.layer_match import LayerMatch
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.rounding import rounding_tolerance
from common.map.array_differences import relative_difference

INCREASING = 1e-4  # largest decrease of a function that counts as rounding, as a share of the range of its results


def has_own_activation(pair: RecordPair, layer: LayerMatch, a: np.ndarray, b: np.ndarray) -> bool:
    """Check whether a layer of the script's own class contains the activation that follows it on the other side.

    If the other side does not compute it, the input of the next layer shows that.

    Args:
        pair: The records.
        layer: The layer.
        a: What it returned in A.
        b: What it returned in B.
    """
    if relative_difference(a, b) <= rounding_tolerance(pair.noise, pair.precision):
        return False
    in_a, in_b = zip(pair.sides, (layer.path_a, layer.path_b), strict=True)
    for layer_of_script, counterpart, x, result in ((in_b, in_a, a, b), (in_a, in_b, b, a)):
        is_activated = _has_activation(*counterpart)
        if is_activated and _is_increasing(x, result):
            return True
        if (is_activated or _has_parts(*layer_of_script)) and find_activation(x, result):
            return True
    return False


def _is_increasing(x: np.ndarray, result: np.ndarray) -> bool:
    """Check whether a result is an increasing function of the numbers of an array, element by element."""
    ordered = result.ravel()[np.argsort(x, axis=None)]
    return bool(ordered.size) and bool(np.diff(ordered).min(initial=0) >= -INCREASING * np.ptp(ordered))


def _has_parts(side: RecordedSide, path: str) -> bool:
    return any(facts["path"].startswith((f"{path}.", f"{path}/")) for facts in side.layers)


def _has_activation(side: RecordedSide, path: str) -> bool:
    """Check whether a layer of Keras has an activation, without which its output is recorded."""
    attributes = next((facts["attributes"] for facts in side.layers if facts["path"] == path), {})
    return attributes.get("activation", "linear") not in (None, "linear")
