"""The loss of a step, which a record has for each micro-batch.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from itertools import product

import numpy as np

from common.diagnose.recorded.losses.label_counts import count_labels
from common.diagnose.recorded.losses.regularizers import compute_penalty
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide


def find_closest_losses(pair: RecordPair, step: int) -> tuple[float, float] | None:
    """Return the losses of a step in A and in B; None if a recorder did not see one.

    A record has the losses of micro-batches. They give the loss of the step in several ways, the readings, because a
    script may have divided them by their number, and their numbers of labels may differ. The two closest readings are
    returned. Whether a script averages correctly is compared by the gradients. Penalties that are a weight decay in the
    other script are left out if the losses are closer without them.
    """
    readings = [*product(_list_readings(pair.a, step), _list_readings(pair.b, step))]
    if pair.has_decays_as_penalties:
        penalty_a, penalty_b = (compute_penalty(side, step) for side in pair.sides)
        readings += [(a - penalty_a, b - penalty_b) for a, b in readings]
    return min(readings, key=lambda losses: abs(losses[0] - losses[1]), default=None)


def _list_readings(side: RecordedSide, step: int) -> list[float]:
    """Return the possible losses of a step: means over the micro-batches, with and without weights, and their sums."""
    losses = [loss for facts in side.record.get_step_facts(step) for loss in facts["losses"]]
    if not losses or any(loss is None for loss in losses):
        return []
    values = np.array(losses, np.float64)
    weights = np.array(count_labels(side, step), np.float64)
    readings = [float(values.mean())]
    if len(weights) == len(values) and weights.sum():
        readings.append(float((values * weights).sum() / weights.sum()))
    if (count := side.get_facts(step)["micro_batches"]) > 1:  # the script may have divided them
        readings += [reading * count for reading in readings]
    return readings
