"""The stage "loss": the loss of each step, and the formula by which each script computes it.

A is the reference record of a diagnosis, and B the record that is compared with it. A micro-batch is named by its
process and its number within the step. The noise of a tensor is the difference that rounding alone causes in it.
"""

from collections.abc import Mapping
from itertools import product

import numpy as np

from common.diagnose.explain.loss_formulas import DOUBLE_SIGMOID
from common.diagnose.findings import Explanation, Stage
from common.diagnose.recorded.carried_states import explain_states
from common.diagnose.recorded.differences_without_effect import has_own_difference_of_loss
from common.diagnose.recorded.differing_calls import describe_exchanged_calls
from common.diagnose.recorded.example_order import pair_arrays
from common.diagnose.recorded.losses.backward_passes import explain_passes
from common.diagnose.recorded.losses.divisors import explain_divisor
from common.diagnose.recorded.losses.label_counts import find_ignored_class, have_other_tokens
from common.diagnose.recorded.losses.label_forms import (
    list_class_layouts,
    list_label_forms,
    list_labels,
    read_label_weights,
)
from common.diagnose.recorded.losses.loss_formulas import (
    DOUBLE_SOFTMAX,
    LOSS_REDUCTION,
    NOT_FROM_LOGITS,
    WITH_PENALTY,
    count_common_parts,
    find_formulas,
    name_difference,
)
from common.diagnose.recorded.losses.loss_settings import is_of_script
from common.diagnose.recorded.losses.loss_terms import MISSING, explain_terms
from common.diagnose.recorded.losses.not_finite import explain_not_finite
from common.diagnose.recorded.losses.regularizers import compute_penalty, list_activity_regularizers
from common.diagnose.recorded.losses.script_formulas import find_script_formulas
from common.diagnose.recorded.losses.step_losses import find_closest_losses
from common.diagnose.recorded.operations.explanation import add_lines, explain_operations, is_rounding
from common.diagnose.recorded.operations.operation_names import LOSS
from common.diagnose.recorded.output_activation import returns_logits
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.rounding import rounding_tolerance
from common.map.array_differences import relative_difference

LATER_SHARE = 100  # a loss that differs this many times as much as the outputs does not inherit their difference
PRECISION_NOISE = 1.0  # noise of a loss as a multiple of the noise of the activations from which it is computed


def compare_losses(pair: RecordPair) -> Stage:
    """Compare the losses of the steps with the same examples; explain the first that differs."""
    stage = Stage("loss", precision=pair.precision)
    if pair.why_steps_differ:
        stage.omit(pair.why_steps_differ)
        return stage
    may_begin_here = not pair.has_difference("activations") or has_own_difference_of_loss(pair)
    differing_steps, missing_steps, first_losses = [], [], None
    for step in pair.equal_steps if not pair.why_outputs_differ else []:
        losses = find_closest_losses(pair, step)
        if losses is None:
            missing_steps.append(step)
            continue
        a, b = (np.array([loss]) for loss in losses)
        is_first = step == pair.equal_steps[0]
        first_losses = losses if is_first else first_losses
        noise = _estimate_noise(pair, step, relative_difference(a, b))
        check = stage.compare_arrays(f"step {step}: loss", a, b, noise, may_begin_here=may_begin_here and is_first)
        if is_first and not check.differs:
            pair.remember(min(check.difference, 1e-5))  # later stages count this difference as noise
        if check.differs:
            differing_steps.append(step)
    if pair.why_outputs_differ:
        stage.omit(pair.why_outputs_differ)
    elif missing_steps:
        stage.omit(f"the recorders did not see the loss of step {missing_steps[0]}")
    elif len(pair.equal_steps) < len(pair.steps):
        step = pair.steps[len(pair.equal_steps)]
        reason = "the scripts draw other random numbers" if step in pair.orders else "the batches differ"
        stage.omit(pair.get_stage("data").omission or reason, extent=f"only compared before step {step}")
    begins_here = bool(stage.checks) and stage.checks[0].begins_here
    losses = first_losses if begins_here else None
    if losses is None or not (_add_not_finite(stage, pair, losses) or _add_passes(stage, pair, losses)):
        _explain(stage, pair, differing_steps if may_begin_here else [], losses)
    return stage


def _estimate_noise(pair: RecordPair, step: int, difference: float) -> float:
    """Return the noise of the losses of a step. difference: their relative difference."""
    noise = max(PRECISION_NOISE * pair.noise, pair.measure_weight_difference(step - 1))
    outputs = [x.difference for x in pair.get_stage("activations").checks if x.tensor.startswith("output ")]
    if step == pair.equal_steps[0] and outputs and not pair.has_difference("activations"):
        noise = max(pair.base_noise, *outputs)  # the loss is closer to them than to a layer with a larger noise
    differs_first = step == pair.equal_steps[0] and difference > rounding_tolerance(noise, pair.precision)
    return difference if differs_first and is_rounding(pair, difference) else noise


def _explain(
    stage: Stage, pair: RecordPair, differing_steps: list[int], losses: tuple[float, float] | None
) -> None:  # fmt: skip
    """Add the causes of losses that differ: those of the first step, if they do, or of `differing_steps`."""
    states = _explain_states(pair, differing_steps)
    if states is not None and states.confirmed:
        stage.add_explanation("loss", states)
    begins_here = losses is not None
    terms = explain_terms(pair, pair.equal_steps[0]) if begins_here else []
    if all(explanation.confirmed for explanation in terms):
        _add_terms(stage, terms)
    are_equal = any(not check.differs for check in stage.checks[:1])
    if not (stage.causes or are_equal) and (begins_here or not have_other_tokens(pair.sides, pair.equal_steps[0])):
        explain_formulas(stage, pair, pair.equal_steps[0])
    divisor = explain_divisor(pair, pair.equal_steps[0], "the loss", losses or (0.0, 0.0))
    _add_terms(stage, [] if divisor is None or stage.causes else [add_lines(divisor, pair, LOSS, LOSS)])
    operations = explain_operations(pair, "loss", LOSS, LOSS) if begins_here and not stage.causes else None
    if operations is not None and operations.confirmed:
        stage.add_explanation("loss", operations)
    if not stage.causes and not (operations is not None and _are_shown_by_operations(pair, terms)):
        _add_terms(stage, terms)
    if operations is not None and not operations.confirmed:
        stage.add_explanation("loss", operations)
    if losses is not None and not stage.causes:
        _explain_factor(stage, pair, losses[1] / losses[0] if losses[0] else 0.0)
    if states is not None and not stage.causes:
        stage.add_explanation("loss", states)
    if not stage.causes and differing_steps and differing_steps[0] != pair.equal_steps[0]:
        _explain_later_step(stage, pair, differing_steps[0])


def _are_shown_by_operations(pair: RecordPair, terms: list[Explanation]) -> bool:
    """Check whether operations say more than terms: what is missing, or what a loss function of a script computes."""
    is_missing = any(term.cause == MISSING for term in terms[:1])
    return is_missing or any(is_of_script(side.record.facts["loss"]) for side in pair.sides)


def _add_not_finite(stage: Stage, pair: RecordPair, losses: tuple[float, float]) -> bool:
    """Check whether one loss is not finite, and add the cause, after the operations that certainly are the reason."""
    reason = explain_not_finite(pair, pair.equal_steps[0], losses)
    if reason is None:
        return False
    operations = explain_operations(pair, "loss", LOSS, LOSS)
    explanations = [reason, *filter(None, [operations])]
    _add_terms(stage, explanations[::-1] if operations is not None and operations.confirmed else explanations)
    return True


def _add_passes(stage: Stage, pair: RecordPair, losses: tuple[float, float]) -> bool:
    """Check whether only one script computes another backward pass through the model, and add it as the cause."""
    passes = explain_passes(pair, pair.equal_steps[0], losses)
    _add_terms(stage, [] if passes is None else [passes])
    return passes is not None


def _add_terms(stage: Stage, explanations: list[Explanation]) -> None:
    for explanation in explanations:
        stage.add_explanation("loss", explanation)


def _explain_later_step(stage: Stage, pair: RecordPair, step: int) -> None:
    """Add a cause for losses that differ after the first step though weights and outputs are still equal.

    The loss then depends on something else that the script changes, such as a target network.
    """
    losses = find_closest_losses(pair, step)
    outputs_a, outputs_b = (side.batches.read_step(step, "output") for side in pair.sides)
    arrays, *unpaired = pair_arrays(outputs_a, outputs_b, are_outputs=True)
    if losses is None or not arrays or any(unpaired) or not losses[0] or pair.get_stage("hyperparameters").causes:
        return
    order = np.argsort(pair.orders[step])
    if any(array.a.shape != array.b.shape or len(array.a) != len(order) for array in arrays):
        return
    difference = max(relative_difference(array.a, array.b[order]) for array in arrays)
    if abs(losses[1] / losses[0] - 1) > LATER_SHARE * max(difference, pair.measure_weight_difference(step - 1)):
        sentence = (
            f"step {step}: from equal outputs B computes {losses[1] / losses[0]:.6g} times A's loss, and in earlier "
            "steps the same: the loss depends on something that changes in another way, such as a target network"
        )
        stage.add_cause("other_state_of_loss", "b", f"step {step}: loss", sentence, confirmed=False)


def _explain_states(pair: RecordPair, differing_steps: list[int]) -> Explanation | None:
    """Explain losses that differ only after the first step by states that one script does not carry over."""
    if pair.equal_steps[0] in differing_steps:
        return None
    return next(filter(None, (explain_states(pair.a, pair.b, step) for step in differing_steps)), None)


def _explain_factor(stage: Stage, pair: RecordPair, factor: float) -> None:
    """Add a cause for losses that differ though outputs and labels are equal.

    Args:
        stage: The stage.
        pair: The records.
        factor: B's loss divided by A's, such as the number of micro-batches or examples.
    """
    step = pair.equal_steps[0]
    counts = [len(side.batches.list_micro_batches(step)) for side in pair.sides]
    examples = sum(pair.a.batches.count_examples(step))
    for number, words in ((counts[1], "micro-batches of B"), (counts[0], "micro-batches of A"), (examples, "examples")):
        if number > 1 and any(np.isclose(factor, target, rtol=1e-4) for target in (number, 1 / number)):
            sentence = f"the loss of B is {factor:.6g} times A's: the number of {words} is {number}"
            stage.add_cause("scaled_loss", "b", "loss", sentence)
            return
    if any(cause.tensor == "loss" for cause in pair.get_stage("hyperparameters").causes):
        return  # the loss functions are known to differ
    regularized = list_activity_regularizers(pair.sides)
    regularizers = f", and the activity regularizer of {', '.join(regularized)}" if regularized else ""
    sentence = f"from equal outputs B computes {factor:.6g} times A's loss: compare the loss functions{regularizers}"
    stage.add_cause("loss_function", "b", "loss", sentence, confirmed=False)


def explain_formulas(stage: Stage, pair: RecordPair, step: int) -> None:
    """Find the formula that reproduces each side's loss from its outputs and labels; add a cause if they differ."""
    formulas = [
        find_side_formulas(
            side, step, pair.precision, _list_lacking_labels(pair, side, other, step), compute_penalty(other, step)
        )
        for side, other in (pair.sides, pair.sides[::-1])
    ]
    if not formulas[0] or not formulas[1]:
        return
    if {*formulas[0]} & {*formulas[1]}:
        if stage.checks and stage.checks[0].begins_here and (sentence := describe_exchanged_calls(pair, step)):
            stage.add_cause("order_between_calls", "b", "loss", f"step {step}: {sentence}")
        return
    a, b = max(product(*formulas), key=lambda names: count_common_parts(*names))
    side = "a" if any(name in a for name in (DOUBLE_SOFTMAX, DOUBLE_SIGMOID, NOT_FROM_LOGITS)) else "b"
    cause = name_difference(a, b)
    stage.add_mismatch("formula of the loss")
    explanation = Explanation(cause, f"the loss of A is {a}; that of B is {b}", side=side)
    stage.add_explanation("loss", add_lines(explanation, pair, LOSS, LOSS))
    reductions = [name.partition(", ")[2] for name in (a, b)]
    if cause == "class_weights" or reductions[0] == reductions[1]:  # the scripts reduce what their losses return
        settings = pair.get_stage("hyperparameters")
        settings.causes = [other for other in settings.causes if other.cause != LOSS_REDUCTION]
        settings.checks = [check for check in settings.checks if check.tensor != "loss: reduction"]
    if cause in ("double_softmax", "double_sigmoid"):  # explains why the outputs differ: one model has probabilities
        activations = pair.get_stage("activations")
        activations.causes = [other for other in activations.causes if not other.tensor.startswith("output ")]


def find_side_formulas(
    side: RecordedSide, step: int, precision: str, lacking_labels: Mapping[tuple[int, int], np.ndarray] | None = None,
    other_penalty: float = 0.0,
) -> list[str]:  # fmt: skip
    """Return the names of the formulas that reproduce the losses of all micro-batches; none if arrays are missing.

    A script may divide the loss by the number of micro-batches, or add the losses of several calls of the model.

    Args:
        side: The side.
        step: The step.
        precision: Precision of the outputs.
        lacking_labels: Labels to use if the side's own are not recorded, by process and number of the micro-batch.
        other_penalty: The penalty of the other side's regularizers, which this script may add itself.
    """
    if script_formulas := find_script_formulas(side, step, precision):
        return script_formulas
    names: list[str] | None = None
    penalty, are_logits = compute_penalty(side, step) or other_penalty, returns_logits(side)
    for micro_batch in side.batches.list_micro_batches(step):
        facts = side.record.get_step_facts(step)[micro_batch[0]]
        loss, count = facts["losses"][micro_batch[1]], facts["micro_batches"]
        returned = side.batches.read_micro_batch(step, *micro_batch, "output").values()
        floats = [x for x in returned if x.dtype.kind == "f" and x.ndim]
        outputs = [x for x in floats if x.ndim > 1] or [x[:, None] for x in floats]
        labels = list_labels(side, step, micro_batch)
        if not labels and lacking_labels is not None and micro_batch in lacking_labels:
            labels = [lacking_labels[micro_batch]]
        if loss is None or not outputs or not labels or not np.ptp(outputs[0]):  # equal outputs fit by chance
            return []
        part, ignored = side.batches.read_micro_batch(step, *micro_batch, "label"), find_ignored_class(side)
        fitting = [
            f"{name}{words}"
            for array in labels
            for logits in list_class_layouts(outputs[0], array)
            for label in list_label_forms(array, logits)
            for weights in [read_label_weights(part, label)]
            for subtracted, words in ((0.0, ""), *([(penalty, WITH_PENALTY)] if penalty else []))
            for factor in sorted({1, count, 1 / len(side.batches.count_rows(step, *micro_batch))})
            for name in find_formulas(
                logits, label, loss * factor - subtracted, precision, weights, ignored, are_logits
            )
        ]
        names = fitting if names is None else [name for name in names if name in fitting]
    # Half a formula comes last, because it may also be the whole formula, divided by two replicas
    return sorted(names or [], key=lambda name: name.startswith("half"))


def _list_lacking_labels(
    pair: RecordPair, side: RecordedSide, other: RecordedSide, step: int
) -> dict[tuple[int, int], np.ndarray]:
    """Return the other side's labels by process and micro-batch, if both sides have the same micro-batches."""
    is_same = np.array_equal(pair.orders[step], np.arange(len(pair.orders[step])))
    if not is_same or side.batches.count_examples(step) != other.batches.count_examples(step):
        return {}
    labels = {key: list_labels(other, step, key) for key in other.batches.list_micro_batches(step)}
    return {micro_batch: arrays[-1] for micro_batch, arrays in labels.items() if arrays}
