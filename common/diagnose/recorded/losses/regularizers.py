"""Regularizers of Keras's layers, whose penalty is a part of the loss.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from common.diagnose.findings import Stage
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide

SUFFIX = "_regularizer"
# Names of causes: a penalty that only one loss has, and one in place of the weight decay of the other side's optimizer
PENALTY, DECAY_PENALTY = "l2_in_loss", "decay_in_loss"
Factors = tuple[float, float]  # the factors of L1 (sum of the absolute values) and of L2 (sum of the squares)


def read_regularizers(side: RecordedSide) -> dict[str, Factors]:
    """Return the factors of the regularizers by the name of the variable. A model of PyTorch has none."""
    factors: dict[str, Factors] = {}
    for layer in side.layers:
        for attribute, value in layer["attributes"].items():
            name = layer["variables"].get(attribute.removesuffix(SUFFIX))
            if attribute.endswith(SUFFIX) and name and isinstance(value, list) and len(value) == 2:
                l1, l2 = (float(factor) for factor in value)
                factors[name] = l1, l2
    return factors


def compute_penalty(side: RecordedSide, step: int) -> float:
    """Return the penalty of all regularizers for the weights before a step."""
    factors = read_regularizers(side)
    weights: Mapping[str, np.ndarray] = side.read_before(step) if factors else {}
    return sum(
        l1 * float(np.abs(weights[name].astype(np.float64)).sum())
        + l2 * float(np.square(weights[name].astype(np.float64)).sum())
        for name, (l1, l2) in factors.items()
        if name in weights
    )


def list_activity_regularizers(sides: Iterable[RecordedSide]) -> list[str]:
    """Return the paths of the layers that have an activity regularizer: one of the script's own, or L1 or L2 not 0."""
    attribute = "activity_regularizer"
    regularizers = [(layer["path"], layer["attributes"].get(attribute)) for x in sides for layer in x.layers]
    return sorted({path for path, x in regularizers if isinstance(x, str) or np.any(np.asarray(x or 0, np.float64))})


def compare_regularizers(stage: Stage, pair: RecordPair) -> None:
    """Add one unconfirmed cause if regularizers differ. The stage "loss" tests whether the losses contain them."""
    if any(cause.cause == DECAY_PENALTY for cause in stage.causes):
        return
    a, b = (read_regularizers(side) for side in pair.sides)
    none = (0.0, 0.0)
    differing = [
        (match.title, values)
        for match in pair.models.variables
        if (values := (a.get(match.names_a[0], none), b.get(match.names_b[0], none)))[0] != values[1]
    ]
    if not differing:
        return
    title, (value_a, value_b) = differing[0]
    more = f", and of {len(differing) - 1} more variables" if len(differing) > 1 else ""
    stage.add_mismatch(f"regularizer of {title}")
    sentence = f"the regularizer of {title} is {_format(value_a)} in A and {_format(value_b)} in B{more}"
    stage.add_cause(PENALTY, "b" if value_b != none else "a", title, sentence, confirmed=False)


def _format(factors: Factors) -> str:
    parts = [f"{name}={factor:g}" for name, factor in zip(("L1", "L2"), factors, strict=True) if factor]
    return " and ".join(parts) or "none"
