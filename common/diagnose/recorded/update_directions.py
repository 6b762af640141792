"""Directions of the updates of two records: the received gradients, with the weight decay that is a part of them.

A is the reference record of a diagnosis, and B the record that is compared with it. With a coupled weight decay d, the
optimizer replaces a gradient g by g + d * w.
"""

import numpy as np

from common.diagnose.recorded.optimizer_settings import read_optimizer_settings
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide

LARGEST_REMAINDER = 0.05  # largest difference of two directions, as a share of what two scripts may do differently


def read_directions(pair: RecordPair, step: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the directions of both sides in the common layout and in float64, by the title of the variable."""
    directions_a, directions_b = (_read_side(side, step) for side in pair.sides)
    pairs = {}
    for match in pair.models.variables:
        a, b = match.read_a(directions_a, is_gradient=True), match.read_b(directions_b, is_gradient=True)
        if a is not None and b is not None and a.shape == b.shape:
            pairs[match.title] = a, b
    return pairs


def are_directions_equal(pair: RecordPair, step: int, size: float) -> bool:
    """Check whether the directions of a step are equal although the scripts may reach them in different ways.

    Args:
        pair: The records.
        step: The step.
        size: The norm of what only one of the scripts does to its gradients itself.
    """
    pairs = read_directions(pair, step).values()
    gap = float(np.sqrt(sum(float(np.square(a - b).sum()) for a, b in pairs)))
    return bool(pairs) and gap <= LARGEST_REMAINDER * size and size > 0


def _read_side(side: RecordedSide, step: int) -> dict[str, np.ndarray]:
    settings, weights, directions = read_optimizer_settings(side), side.read_before(step), {}
    for name, gradient in side.gradients.read(step).items():
        directions[name] = gradient.astype(np.float64)
        group, weight = settings.get(name), weights.get(name)
        if group is None or weight is None or weight.shape != gradient.shape:
            continue
        if group.decay_matters and not group.is_decoupled:
            directions[name] += group.weight_decay * weight
    return directions
