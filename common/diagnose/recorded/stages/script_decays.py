"""Weight decay that a script adds to its gradients itself, beside the weight decay of the optimizers.

A is the reference record of a diagnosis, and B the record that is compared with it. With a coupled weight decay d, the
optimizer replaces a gradient g by g + d * w. A script may do so before its optimizer receives the gradient. Its record
shows that, unless an older recorder wrote it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from common.diagnose.recorded.optimizer_settings import OptimizerSettings, read_optimizer_settings
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.stages.loss import find_closest_losses
from common.diagnose.recorded.update_directions import LARGEST_REMAINDER, are_directions_equal
from common.diagnose.recorded.variable_pairs import VariableMatch

SAME_DECAY = 0.01  # largest relative difference of decays of which a script's gradients show one
PairedSettings = tuple[VariableMatch, OptimizerSettings, OptimizerSettings]  # of a variable in A and in B


def pair_settings(pair: RecordPair) -> list[PairedSettings]:
    """Return the settings of each pair of parameters, with the weight decay that the scripts add themselves."""
    settings_a, settings_b = (read_optimizer_settings(side) for side in pair.sides)
    paired = []
    for match in pair.models.variables:
        a, b = settings_a.get(match.names_a[0]), settings_b.get(match.names_b[0])
        if a is not None and b is not None:
            paired.append(
                (match, _add_decay(pair.a, match.names_a[0], a, b), _add_decay(pair.b, match.names_b[0], b, a))
            )
    if any(side.changes.decays for side in pair.sides):
        paired = [
            (match, a, replace(b, weight_decay=a.weight_decay) if _are_close(a.weight_decay, b.weight_decay) else b)
            for match, a, b in paired
        ]
    return paired


def _add_decay(
    side: RecordedSide, name: str, settings: OptimizerSettings, counterpart: OptimizerSettings
) -> OptimizerSettings:
    """Return the settings of a parameter with the decay that the script adds.

    Args:
        side: The side.
        name: The name of the parameter.
        settings: The settings of its optimizer.
        counterpart: The settings of the other side, which count if the gradients do not show whether the script decays
            the parameter.
    """
    decays = side.changes.decays
    if not decays:
        return settings
    if name not in decays:
        return replace(settings, weight_decay=counterpart.weight_decay, is_decoupled=counterpart.is_decoupled)
    is_decoupled = settings.is_decoupled and settings.decay_matters
    return replace(settings, weight_decay=settings.weight_decay + decays[name], is_decoupled=is_decoupled)


def _are_close(a: float, b: float) -> bool:
    return abs(a - b) <= SAME_DECAY * max(abs(a), abs(b))


def have_equal_decays(pair: RecordPair, paired: Sequence[PairedSettings]) -> bool:
    """Check whether the first directions of both sides are equal, though the weight decays seem to differ.

    A script of which this is not recorded may add the decay, or the loss may have it as a penalty, which counts as a
    difference unless the other script adds the decay itself.

    Args:
        pair: The records.
        paired: The settings of each pair of parameters.
    """
    differing = [(match, abs(a.weight_decay - b.weight_decay)) for match, a, b in paired]
    are_coupled = not any(x.decay_matters and x.is_decoupled for _, a, b in paired for x in (a, b))
    if not are_coupled or not any(decay for _, decay in differing):
        return False
    step, norm, penalty = pair.steps[0], 0.0, 0.0
    weights = pair.a.read_weights(step - 1)
    for match, decay in differing:
        if decay and (weight := match.read_a(weights)) is not None:
            squares = float(np.square(weight.astype(np.float64)).sum())
            norm, penalty = float(np.hypot(norm, decay * np.sqrt(squares))), penalty + 0.5 * decay * squares
    if not are_directions_equal(pair, step, norm):
        return False
    losses = find_closest_losses(pair, step)
    is_in_loss = losses is None or abs(losses[0] - losses[1]) > LARGEST_REMAINDER * penalty
    return not is_in_loss or any(side.changes.decays for side in pair.sides)
