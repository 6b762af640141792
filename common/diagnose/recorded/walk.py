"""The walk through the stages of a diagnosis of two records that did not follow one another.

A is the reference record, and B the record that is compared with it.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from common.diagnose.diagnosis import Diagnosis
from common.diagnose.findings import EQUAL, PARTIAL_CAUSES, Cause, Stage
from common.diagnose.recorded.differences_without_effect import (
    accept_data,
    drop_differences_without_effect,
    drop_penalty_without_effect,
    is_without_effect,
    may_be_without_effect,
)
from common.diagnose.recorded.losses.not_finite import NOT_FINITE
from common.diagnose.recorded.losses.partial_labels import accept_unknown_labels
from common.diagnose.recorded.losses.regularizers import DECAY_PENALTY, PENALTY
from common.diagnose.recorded.masked_tokens import MASK_ZERO
from common.diagnose.recorded.operations.explanation import OPERATION_CAUSES
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.rule_comparison import explain_adam
from common.diagnose.recorded.stages.activations import compare_activations
from common.diagnose.recorded.stages.data import compare_data
from common.diagnose.recorded.stages.environment import compare_environments, finish_environment
from common.diagnose.recorded.stages.gradients import compare_gradients
from common.diagnose.recorded.stages.hyperparameters import compare_hyperparameters
from common.diagnose.recorded.stages.initial_weights import compare_initial_weights
from common.diagnose.recorded.stages.loss import compare_losses
from common.diagnose.recorded.stages.optimizer import compare_updates
from common.diagnose.recorded.stages.reduction import compare_reductions
from common.diagnose.recorded.stages.script_decays import drop_declared_decays
from common.diagnose.recorded.stages.state import compare_states
from common.errors import UserError
from common.recording.record_reader import open_record
from common.records.bundle import OpenBundles

STAGES: tuple[Callable[[RecordPair], Stage], ...] = (
    compare_environments,
    compare_hyperparameters,
    compare_data,
    compare_initial_weights,
    compare_activations,
    compare_losses,
    compare_gradients,
    compare_reductions,
    compare_updates,
    compare_states,
)
# Causes that only locate a difference, removed if a confirmed cause explains the difference
UNEXPLAINED = (
    "gradient",
    "loss_function",
    "unexplained",
    "optimizer",
    "reduction",
    "used_gradients",
    "layer",
    "code_between_layers",
    "repeated_indices",
    "recurrent_layer",
    "state_not_carried",
)
# Keras may clip the rows of a sparse gradient, and also square them, before it adds the rows of one index
CLIPPED_ROWS, REPEATED = "clipped_per_row", "repeated_indices"
CLIPPING_CAUSES = ("clipped_per_variable", "not_clipped")  # these scale each gradient by a different factor
BEFORE_UPDATE = ("activations", "loss")  # stages that compare what precedes the first update
BEFORE_DATA = ("activations", "loss", "gradients", "reduction")  # their differences may change later data
OF_LOSS = ("loss", "gradients")  # stages whose causes explain no activations
OF_UPDATE = ("reduction", "optimizer", "state")  # stages whose causes explain nothing before it
# Causes of the stage "hyperparameters" that are confirmed if the loss or the activations differ
LOSS_CAUSES = ("label_smoothing", "loss_reduction", "ignored_labels", "loss_function", "class_weights", PENALTY)
EPSILON_CAUSE = "own_epsilon"
EVALUATION_NOTE = "evaluation is not recorded, such as its data, its mode, and averaged weights (EMA)"
NOISE_NOTE = "noise was not measured: it is estimated from the differences of earlier tensors"


def diagnose_records(
    path_a: Path, path_b: Path, map_file: Path | None = None, bundles: OpenBundles | None = None
) -> Diagnosis:
    """Compare two records. Raise UserError if a record is damaged, or if the records have no step in common.

    Args:
        path_a: The directory of A's record.
        path_b: The directory of B's record.
        map_file: The file that pairs the variables of the two models, if names and layers do not.
        bundles: The bundles from which the records were unpacked. The report names them.
    """
    a, b = RecordedSide("a", open_record(path_a)), RecordedSide("b", open_record(path_b))
    for side in (a, b):
        side.record.directory = (bundles or OpenBundles()).get_origin(side.record.directory)
    pair = RecordPair(a, b, map_file)
    if not pair.steps:
        raise UserError(f"{path_b}: has no step in common with {path_a}; record the same steps of both scripts")
    _compare_stages(pair)
    if may_be_without_effect(pair):
        accepting = RecordPair(a, b, map_file)
        _compare_stages(accepting, pair.get_stage("data"))
        differing = [step for step in pair.steps if step not in pair.equal_steps]
        pair = accepting if is_without_effect(accepting, min(differing, default=pair.steps[0])) else pair
    explain_adam(pair)
    finish_environment(pair)  # may add causes to the first stage, now that all others are known
    _confirm_hyperparameters(pair)
    if not pair.compares_directions and pair.has_difference("activations", "loss") and pair.has_decays_as_penalties:
        drop_declared_decays(pair)
    _drop_needless_causes(pair)
    for stage in pair.stages:
        stage.note = stage.note or stage.rounding_note
    return Diagnosis(
        titles={side.name: side.title for side in pair.sides},
        stages=pair.stages,
        unpaired=[*pair.models.unpaired_a, *pair.models.unpaired_b],
        precision=pair.precision,
        notes=_list_notes(pair),
    )


def _compare_stages(pair: RecordPair, accepted: Stage | None = None) -> None:
    """Compare the stages of two records, and add them to the pair.

    Args:
        pair: The records without finished stages.
        accepted: The stage "data" whose differences count as being without effect; None to compare the batches.
    """
    for compare in STAGES:
        if accepted is not None and compare is compare_data:
            pair.stages.append(accept_data(pair, accepted))
            continue
        pair.stages.append(compare(pair))
        if compare is compare_losses:
            drop_penalty_without_effect(pair)
        if compare is compare_gradients:
            drop_differences_without_effect(pair)
            accept_unknown_labels(pair)


def _confirm_hyperparameters(pair: RecordPair) -> None:
    """Confirm the hyperparameters that explain the difference.

    A hyperparameter of the optimizer is confirmed if the formulas reproduce the updates of both sides: each side then
    uses the hyperparameters that it declares. Others are confirmed if the stage that computes with them differs.
    """
    optimizer = pair.get_stage("optimizer")
    are_reproduced = optimizer.verdict == EQUAL and not optimizer.note
    # What differs before the loss shows nothing about the loss function
    loss_differs = pair.has_difference("loss", "gradients") and not pair.has_difference("activations")
    layers = {cause.tensor for cause in pair.get_stage("activations").causes if cause.cause == "layer"}
    stage = pair.get_stage("hyperparameters")
    confirmed = []
    for cause in stage.causes:
        # Causes of the optimizer have sentences such as "the optimizer's momentum is ..."
        is_of_optimizer = cause.tensor not in ("loss", "clipping") and "optimizer's" in cause.sentence
        has_effect = are_reproduced if is_of_optimizer else loss_differs and cause.cause in LOSS_CAUSES
        has_effect |= cause.cause == MASK_ZERO and pair.has_difference("activations")
        has_effect |= cause.cause == EPSILON_CAUSE and _begins_at(pair, cause.tensor)
        has_effect |= cause.tensor in layers
        # The script may add the penalty itself, which the losses do not reveal if the outputs differ
        has_effect &= cause.cause != PENALTY or not pair.has_difference("activations")
        confirmed.append(replace(cause, confirmed=cause.confirmed or has_effect))
    stage.causes = confirmed


def _begins_at(pair: RecordPair, title: str) -> bool:
    """Check whether the activations begin to differ at a layer, or directly after it if it is not compared itself."""
    checks = pair.get_stage("activations").checks
    order = {layer["path"]: index for index, layer in enumerate(pair.a.layers)}
    indices = [order.get(check.tensor.removeprefix("input of ").partition(" | ")[0], len(order)) for check in checks]
    index = order[title.partition(" | ")[0]]
    if index in indices:
        return any(check.begins_here and check.tensor == title for check in checks)
    differs_before = any(check.differs for check, other in zip(checks, indices, strict=True) if other < index)
    following = next((check for check, other in zip(checks, indices, strict=True) if other > index), None)
    return not differs_before and following is not None and following.begins_here


def _drop_needless_causes(pair: RecordPair) -> None:
    """Remove unexplained causes if a confirmed one explains the difference, and repetitions of earlier causes."""
    causes = [cause for stage in pair.stages for cause in stage.causes]
    explaining = {
        cause.cause
        for cause in causes
        if cause.cause == "precision"
        or (cause.confirmed and cause.cause not in PARTIAL_CAUSES and cause.cause not in OPERATION_CAUSES)
    }
    of_update = pair.update_causes | {cause.cause for cause in causes if cause.stage in OF_UPDATE}
    of_loss = {DECAY_PENALTY, *LOSS_CAUSES, *(cause.cause for cause in causes if cause.stage in OF_LOSS)}
    has_other_explanation = any(cause.confirmed or cause.cause in OPERATION_CAUSES for cause in causes)
    # Later stages only compare steps before the data differ: an agent whose gradients differ receives other states
    differs_before = any(cause.stage in BEFORE_DATA for cause in causes)
    kept_causes: list[Cause] = []
    for stage in pair.stages:
        for cause in stage.causes:
            reasons = explaining - of_update if stage.name in BEFORE_UPDATE else explaining
            reasons = reasons - of_loss if stage.name == "activations" else reasons
            reasons = reasons - {CLIPPED_ROWS} if cause.cause == REPEATED else reasons
            is_unexplained = not cause.confirmed and cause.cause in UNEXPLAINED
            if reasons and (is_unexplained or (cause.cause in OPERATION_CAUSES and reasons != {NOT_FINITE})):
                continue
            if cause.stage == "data" and not cause.confirmed and differs_before:
                continue
            if cause.cause == "scaled_gradient" and not explaining.isdisjoint(CLIPPING_CAUSES):
                continue
            if cause.cause == PENALTY and not cause.confirmed and has_other_explanation:
                continue
            earlier = next((other for other in kept_causes if _is_repetition(cause, other)), None)
            if earlier is None:
                kept_causes.append(cause)
            elif cause.confirmed:
                kept_causes[kept_causes.index(earlier)] = replace(earlier, confirmed=True)
    for stage in pair.stages:
        stage.causes = [cause for cause in kept_causes if cause.stage == stage.name]


def _is_repetition(cause: Cause, earlier: Cause) -> bool:
    """Check whether a later stage finds the same cause again. The stage "activations" names other tensors."""
    if cause.stage == "loss" and (cause.cause, earlier.cause) == ("loss_function", "loss_reduction"):
        return True  # a sum over the outputs looks like another formula
    if cause.stage == "loss" and (cause.cause, earlier.cause) == (PENALTY, DECAY_PENALTY):
        return True
    if (cause.cause, cause.side) != (earlier.cause, earlier.side) or cause.stage == earlier.stage:
        return False
    return cause.stage != "activations" or cause.tensor == earlier.tensor


def _list_notes(pair: RecordPair) -> list[str]:
    """Return notes for a reader of the report: what is not recorded or compared, and how to compare more."""
    notes = [f"{side.name.upper()}: {note}" for side in pair.sides for note in side.record.notes]
    counts = [len(side.record.steps) for side in pair.sides]
    if counts[0] != counts[1] or len(pair.steps) < counts[0]:
        notes.append(f"A has {counts[0]} steps and B {counts[1]}; the {len(pair.steps)} common ones are compared")
    notes += [NOISE_NOTE, EVALUATION_NOTE]
    different = [name for name in ("data", "initial weights") if pair.has_difference(name)]
    if different and not pair.has_followed:
        notes.append(
            f"the {' and the '.join(different)} differ, so that later stages are not compared: add "
            f'follow="{pair.a.record.directory}" to the recorder of B\'s script, and let it loop over '
            "recorder.batches(...); see docs/recording.md"
        )
    return notes
