"""Differences that change neither the loss nor the gradients.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

import numpy as np

from common.diagnose.findings import DIFFERS, SHAPE_OF_OUTPUTS, Stage, TensorCheck
from common.diagnose.recorded.losses.regularizers import PENALTY, compute_penalty
from common.diagnose.recorded.losses.step_losses import find_closest_losses
from common.diagnose.recorded.record_pair import RecordPair
from common.map.array_differences import relative_difference

STATE_CAUSES = ("state_not_carried", "state_not_reset")
EFFECT_SHARE = 0.25  # share of the tolerance that a loss and its gradients exceed if a difference changes them
LARGEST_REMAINDER = 0.01  # largest unexplained part of two losses' difference, in penalties, if a penalty explains it
LARGEST_OUTPUTS = 1e-3  # largest difference of outputs that is small
LOSS_SHARE = 1000  # a loss that differs this many times as much as its outputs differs for a reason of its own
OUTPUT = "output "  # the begin of the names of outputs in the stage "activations"


def may_be_without_effect(pair: RecordPair) -> bool:
    """Check whether the batches differ, or were not compared, although B's script got those of A's record."""
    data = pair.get_stage("data")
    # A state acts little at first, and more in each step
    has_other_states = any(cause.cause in STATE_CAUSES and cause.confirmed for cause in data.causes)
    return pair.has_followed and not has_other_states and bool(data.causes or data.omission)


def accept_data(pair: RecordPair, data: Stage) -> Stage:
    """Return the stage "data" as if the batches were equal, and set `pair.orders`.

    Args:
        pair: The records, whose later stages are then compared.
        data: The stage whose differences shall be without effect.
    """
    accepted = Stage("data")
    for step in pair.steps:
        count = sum(pair.a.batches.count_examples(step))
        if not count:
            break
        pair.orders[step] = np.arange(count)
        accepted.checks.append(TensorCheck(f"step {step}: examples", 0.0))
    differing = [cause.sentence for cause in data.causes] or [data.note]
    accepted.note = f"the losses and gradients do not depend on what differs: {'; '.join(differing)}"
    return accepted


def is_without_effect(pair: RecordPair, step: int) -> bool:
    """Check whether stages that were compared after `accept_data` show that the batches are the same for the training.

    The loss and the gradients of the step are then equal, and no later ones begin to differ.

    Args:
        pair: The records.
        step: The first step whose batches differ.
    """
    checks = _list_checks(pair, step)
    if not checks or any(check.difference > EFFECT_SHARE * check.tolerance or check.may_hide_any for check in checks):
        return False
    stages = [pair.get_stage(name) for name in ("activations", "loss", "gradients")]
    return not any(stage.causes or any(check.begins_here for check in stage.checks) for stage in stages)


def has_own_difference_of_loss(pair: RecordPair) -> bool:
    """Check whether the losses of the first step differ far more than the outputs, which differ a little."""
    outputs = [x.difference for x in pair.get_stage("activations").checks if x.tensor.startswith(OUTPUT)]
    losses = find_closest_losses(pair, pair.equal_steps[0]) if outputs else None
    if losses is None or max(outputs) > LARGEST_OUTPUTS:
        return False
    a, b = (np.array([loss]) for loss in losses)
    return relative_difference(a, b) > LOSS_SHARE * max(outputs)


def drop_penalty_without_effect(pair: RecordPair) -> None:
    """Remove regularizers that only one side has if the losses do not differ by their penalty.

    If the losses are equal, the other script adds the penalty itself. This holds only if all outputs are equal and each
    side has one micro-batch.
    """
    if pair.get_stage("loss").omission or not pair.get_stage("loss").checks or pair.has_difference("activations"):
        return
    step = pair.equal_steps[0]
    losses = find_closest_losses(pair, step)
    if losses is None or any(len(side.batches.list_micro_batches(step)) > 1 for side in pair.sides):
        return
    penalties = [compute_penalty(side, step) for side in pair.sides]
    missing = abs(losses[1] - losses[0] - penalties[1] + penalties[0])
    if missing > LARGEST_REMAINDER * abs(penalties[1] - penalties[0]):
        stage = pair.get_stage("hyperparameters")
        stage.causes = [cause for cause in stage.causes if cause.cause != PENALTY]
        stage.checks = [check for check in stage.checks if not check.tensor.startswith("regularizer ")]


def drop_differences_without_effect(pair: RecordPair) -> None:
    """Remove differing outputs and settings of loss functions that give equal losses and gradients.

    A sum that the script divides by the number of examples is the mean, for example, and the softmax of a model may be
    a part of the other script's loss.
    """
    _drop_activations_without_effect(pair)
    checks = _list_first_checks(pair)
    if not checks or any(check.differs or check.may_hide_any for check in checks):
        return
    stage = pair.get_stage("hyperparameters")
    stage.causes = [cause for cause in stage.causes if cause.tensor != "loss"]
    stage.checks = [check for check in stage.checks if not check.tensor.startswith("loss: ")]
    stage = pair.get_stage("activations")
    are_outputs = all(check.tensor.startswith(OUTPUT) for check in stage.checks if check.begins_here)
    causes = {cause.cause for cause in stage.causes if cause.tensor.startswith(OUTPUT)}
    if are_outputs and causes == {"activation"}:
        stage.causes = [cause for cause in stage.causes if not cause.tensor.startswith(OUTPUT)]
        stage.checks = [check for check in stage.checks if not check.tensor.startswith(OUTPUT)]
        stage.note = stage.note or "the outputs differ, and the losses and gradients do not: each loss takes its form"


def _drop_activations_without_effect(pair: RecordPair) -> None:
    """Remove differing activations if the loss and the gradients of the same step are equal.

    They are elements on which the loss does not depend, such as those of padding, which only one script may mask, or
    the model of one script returns what the other script computes from outputs for its loss.
    """
    stage = pair.get_stage("activations")
    if stage.verdict != DIFFERS:
        return
    if pair.get_stage("loss").causes and has_own_difference_of_loss(pair):
        if not any(cause.confirmed for cause in stage.causes):
            stage.causes, stage.checks = [], [check for check in stage.checks if not check.differs]
            stage.note = stage.note or "the loss differs far more than what differs in the layers"
        return
    checks = _list_first_checks(pair)
    share = 1.0 if {cause.cause for cause in stage.causes} == {SHAPE_OF_OUTPUTS} else EFFECT_SHARE
    if not checks or any(x.difference > share * x.tolerance or x.may_hide_any for x in checks):
        return
    step = pair.equal_steps[0]
    stage.causes, stage.checks = [], [check for check in stage.checks if not check.differs]
    stage.note = stage.note or f"the loss and the gradients of step {step} do not depend on what differs"


def _list_first_checks(pair: RecordPair) -> list[TensorCheck]:
    """Return the checks of the loss and of the gradients of the first step; none unless both are compared."""
    return _list_checks(pair, pair.equal_steps[0]) if pair.equal_steps else []


def _list_checks(pair: RecordPair, step: int) -> list[TensorCheck]:
    """Return the checks of the loss and of the gradients of a step; none unless both are compared."""
    checks = [
        [check for check in pair.get_stage(name).checks if check.tensor.startswith(f"step {step}: ")]
        for name in ("loss", "gradients")
    ]
    return [check for of_stage in checks for check in of_stage] if all(checks) else []
