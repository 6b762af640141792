"""The stage "optimizer": each record's update, computed again by the formula of its hyperparameters.

A is the reference record of a diagnosis, and B the record that is compared with it. Each side is compared with its own
hyperparameters; the stage "hyperparameters" compares A's with B's. Slots are the optimizer's arrays.
"""

import numpy as np

from common.diagnose.explain.step_gradients import StepGradients, estimate_slot_noise, global_norm, recover_gradients
from common.diagnose.findings import Stage
from common.diagnose.recorded.clipped_weights import Bounds, BoundsOfSteps, undo_clipping
from common.diagnose.recorded.rates import STATE_LOST, find_empty_starts
from common.diagnose.recorded.record_pair import RecordPair, find_weight_precision
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.recorded_updates import RecordedUpdate, list_updates, why_not_computed
from common.diagnose.recorded.rule_comparison import compare_with_rule
from common.diagnose.recorded.weights_between_updates import compare_changed_weights
from common.diagnose.stages.optimizer import compare_optimizer
from common.diagnose.stages.reduction import compare_reduction


def compare_updates(pair: RecordPair) -> Stage:
    """Compare the updates of both sides with their formulas, and the slots from which both start."""
    stage = Stage("optimizer", precision="float64")
    reasons = [why_not_computed(side) or _why_imprecise(side) for side in pair.sides]
    bounds: dict[str, BoundsOfSteps] = {side.name: {} for side in pair.sides}
    for side, reason in zip(pair.sides, reasons, strict=True):
        if not reason:
            bounds[side.name] = _compare_side(stage, side, pair)
    compare_changed_weights(stage, pair, bounds)
    keep_one_sided_causes(stage)
    if not any(reasons):
        _compare_lost_state(stage, pair)
    # No omission: the stage checks each record by itself, and the stage "state" compares what both updates did
    if any(reasons):
        stage.note = f"not compared: {'; '.join(filter(None, reasons))}"
    elif not stage.checks:
        stage.note = stage.note or "not compared: gradients or weights are not recorded"
    return stage


def _why_imprecise(side: RecordedSide) -> str:
    """Return the reason why a side's updates have too few digits to be compared, or an empty string."""
    precision = find_weight_precision(side)
    return f"the weights of {side.title} are in {precision}" if "16" in precision else ""


def keep_one_sided_causes(stage: Stage) -> None:
    """Remove the causes that both sides have, because they explain no difference between the sides."""
    sides = {name: {cause.cause for cause in stage.causes if cause.side == name} for name in "ab"}
    both = sides["a"] & sides["b"]
    stage.causes = [cause for cause in stage.causes if cause.cause not in both]
    if both and not stage.causes:
        stage.checks = [check for check in stage.checks if not check.differs]
        stage.note = f"both sides alike: {', '.join(sorted(both))}"


def _compare_side(stage: Stage, side: RecordedSide, pair: RecordPair) -> BoundsOfSteps:
    """Compare the updates of a side with their formula, and return the bounds to which they clip the weights."""
    precision = "float64" if pair.precision == "float64" else "float32"
    bounds: dict[int, dict[str, Bounds]] = {}
    for step, updates in list_updates(side, pair.steps, precision):
        for update in updates:
            recorded, bounds_of_update = undo_clipping(update)
            bounds.setdefault(step, {}).update(bounds_of_update)
            if not recorded.settings.is_plain:
                if not stage.has_cause_of(side.name):
                    compare_with_rule(stage, side, recorded)
                continue
            if recorded.recorded_slots:
                _compare_slots(stage, side, step, recorded)
            if not stage.has_cause_of(side.name):
                compare_optimizer(stage, side.name, recorded.update, are_slots_recorded=bool(recorded.recorded_slots))
    return bounds


def _compare_slots(stage: Stage, side: RecordedSide, step: int, recorded: RecordedUpdate) -> None:
    """Compare the gradients that the slots imply with those that the optimizer received."""
    update, settings = recorded.update, recorded.settings
    if settings.algorithm == "sgd" and not settings.momentum:
        return
    if settings.algorithm == "sgd" and (settings.rate_inside_velocity or settings.nesterov):
        return  # the formula of the update compares their slots
    recovered = recover_gradients(update.settings, update.slots_before, update.slots_after, update.weights_before)
    if settings.is_decoupled and settings.algorithm == "sgd":
        return
    gradients = StepGradients(
        settings=update.settings,
        step=update.step,
        shard_gradients=[update.gradients],
        shard_weights=[1.0],
        recovered={name: gradient for name, gradient in recovered.items() if name in update.gradients},
        previous_sum=_read_previous(side, step, update.gradients),
        reported_norm=global_norm(update.gradients),
        weights=update.weights_before,
        noise=estimate_slot_noise(update.settings, update.slots_before, update.slots_after),
    )
    compare_reduction(stage, side.name, gradients)


def _read_previous(side: RecordedSide, step: int, gradients: object) -> dict[str, np.ndarray] | None:
    if step - 1 not in side.record.steps:
        return None
    previous = side.gradients.read(step - 1)
    names = set(gradients)  # type: ignore[call-overload]
    return {name: array.astype(np.float64) for name, array in previous.items() if name in names} or None


def _compare_lost_state(stage: Stage, pair: RecordPair) -> None:
    """Check whether only one side starts with slots of earlier steps."""
    sides = find_empty_starts(pair)
    if len(sides) != 1:
        return
    name, other = sides[0], "A" if sides[0] == "b" else "B"
    stage.add_mismatch("slots at the start")
    sentence = f"{name.upper()} starts with an empty optimizer; {other} starts with the slots of earlier steps"
    stage.add_cause(STATE_LOST, name, "slots", sentence)
