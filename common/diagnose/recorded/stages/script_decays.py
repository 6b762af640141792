"""Weight decay that a script adds to its gradients itself, beside the weight decay of the optimizers.

A is the reference record of a diagnosis, and B the record that is compared with it. With a coupled weight decay d, the
optimizer replaces a gradient g by g + d * w. A script may do so before its optimizer receives the gradient. Its record
shows that, unless an older recorder wrote it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from common.diagnose.recorded.losses.regularizers import DECAY_PENALTY, PENALTY, read_regularizers
from common.diagnose.recorded.losses.step_losses import find_closest_losses
from common.diagnose.recorded.optimizer_settings import OptimizerSettings, read_optimizer_settings
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.update_directions import LARGEST_REMAINDER, are_directions_equal
from common.diagnose.recorded.variable_match import VariableMatch

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

    A script of which this is not recorded may add the decay, or the loss may have it as a penalty, as with Keras's
    regularizers: L2 with the factor d / 2 has the gradient d * w.

    Args:
        pair: The records.
        paired: The settings of each pair of parameters.
    """
    differing = _list_differing(paired)
    if not differing or any(x.decay_matters and x.is_decoupled for _, a, b in paired for x in (a, b)):
        return False
    step, norm = pair.steps[0], 0.0
    weights = pair.a.read_before(step)
    for match, decay in differing:
        if (weight := match.read_a(weights)) is not None:
            norm = float(np.hypot(norm, decay * np.linalg.norm(weight.astype(np.float64))))
    return are_directions_equal(pair, step, norm)


def find_side_with_penalty(pair: RecordPair, paired: Sequence[PairedSettings]) -> str:
    """Return the side whose loss has the weight decay of the other side as a penalty; empty if no loss has it.

    Args:
        pair: The records, whose first directions are equal.
        paired: The settings of each pair of parameters.
    """
    step, penalties = pair.steps[0], [0.0, 0.0]  # of A's loss and of B's
    losses, weights = find_closest_losses(pair, step), pair.a.read_before(step)
    for match, a, b in paired:
        if (weight := match.read_a(weights)) is not None:
            decay = 0.5 * (b.weight_decay - a.weight_decay)
            penalties[decay < 0] += abs(decay) * float(np.square(weight.astype(np.float64)).sum())
    if losses is None:
        return ""
    gaps = losses[0] - losses[1], losses[1] - losses[0]
    sides = [side for side, gap, x in zip("ab", gaps, penalties, strict=True) if x and gap > LARGEST_REMAINDER * x]
    return sides[0] if sides else ""


def are_decays_penalties(pair: RecordPair) -> bool:
    """Check whether regularizers declare what the weight decays of the optimizers lack, for each pair of parameters."""
    paired = pair_settings(pair)
    decays = read_declared_decays(pair, paired)
    if any(x.decay_matters and x.is_decoupled for _, a, b in paired for x in (a, b)):
        return False
    return bool(_list_differing(paired)) and all(_are_close(*decay) for decay in decays.values())


def drop_declared_decays(pair: RecordPair) -> None:
    """Remove differing weight decays that regularizers replace, if another difference hides that in the gradients."""
    for stage in pair.stages:
        stage.causes = [
            replace(cause, cause=DECAY_PENALTY, confirmed=False) if cause.cause == PENALTY else cause
            for cause in stage.causes
            if cause.tensor != "weight_decay"
        ]


def read_declared_decays(pair: RecordPair, paired: Sequence[PairedSettings]) -> dict[str, tuple[float, float]]:
    """Return the weight decay of each pair of parameters, with that of L2 regularizers, by the title of the pair."""
    factors = [read_regularizers(side) for side in pair.sides]
    decays = {}
    for match, a, b in paired:
        (_, l2_a), (_, l2_b) = (
            x.get(names[0], (0.0, 0.0)) for x, names in zip(factors, (match.names_a, match.names_b), strict=True)
        )
        decays[match.title] = a.weight_decay + 2 * l2_a, b.weight_decay + 2 * l2_b
    return decays


def _list_differing(paired: Sequence[PairedSettings]) -> list[tuple[VariableMatch, float]]:
    """Return the pairs of parameters with other weight decays, and the difference of these."""
    gaps = [(match, abs(a.weight_decay - b.weight_decay)) for match, a, b in paired]
    return [(match, gap) for match, gap in gaps if gap]
