"""The stage "data": whether both scripts train on the same examples, prepared in the same way.

A is the reference record of a diagnosis, and B the record that is compared with it. A projection is one number that
identifies an example: a random weighted sum of its values.
"""

import numpy as np

from common.diagnose.findings import NOT_COMPARED, Explanation, Stage, TensorCheck
from common.diagnose.recorded.carried_states import explain_reset, list_carried_states, list_states_of_calls
from common.diagnose.recorded.changed_batches import (
    find_equal,
    note_changed_batches,
    omit_computed_inputs,
    replace_computed_inputs,
)
from common.diagnose.recorded.columns import join_columns
from common.diagnose.recorded.differing_calls import (
    describe_other_pairs,
    describe_uncounted_calls,
    describe_unjoined,
    explain_differing_call,
    find_differing_call,
    has_several_calls,
)
from common.diagnose.recorded.example_axis import numbers_examples
from common.diagnose.recorded.example_counts import explain_counts
from common.diagnose.recorded.example_order import (
    COMPUTED,
    DRIFTED,
    ArrayPair,
    are_close,
    count_known,
    find_order,
    pair_arrays,
    project_examples,
    project_steps,
    sort_examples,
)
from common.diagnose.recorded.losses.computed_labels import is_computed
from common.diagnose.recorded.losses.partial_labels import compare_partial_labels, explain_input_as_label, is_label
from common.diagnose.recorded.losses.weights_in_loss import compare_weights_in_loss
from common.diagnose.recorded.preparation import explain_preparation
from common.diagnose.recorded.record_pair import RecordPair, describe_seeds
from common.diagnose.recorded.recorded_batches import LABELS
from common.diagnose.recorded.token_lengths import find_token_lengths

NOT_DATA = ("past_key_values",)  # first parts of the names of inputs that models compute themselves
MASK = "mask"  # part of the names of inputs that are attention masks
MOST = 0.5  # if more than this share of the common examples have the same positions, B has A's order
LEAST_COMMON = 0.1  # if less than this share of B's examples are in A's record, B has other examples


def compare_data(pair: RecordPair) -> Stage:
    """Compare the batches, up to the first step that differs, and set `pair.orders`."""
    stage = Stage("data")
    for step in pair.steps:
        counts = [sum(side.batches.count_examples(step)) for side in pair.sides]
        if titles := [side.title for side, count in zip(pair.sides, counts, strict=True) if not count]:
            _omit_from(stage, step, f"the inputs of {titles[0]} in step {step} are not recorded")
            return stage
        if counts[0] != counts[1] and (sentence := describe_uncounted_calls(pair.sides, step)):
            _omit_from(stage, step, sentence)
            return stage
        if counts[0] != counts[1]:
            stage.add_mismatch(f"step {step}: examples")
            stage.add_explanation("examples", explain_counts(pair, step, counts), prefix=f"step {step}")
            return stage
        if titles := [side.title for side in pair.sides if side.batches.has_abridged_inputs(step)]:
            # The inputs that are recorded as a whole, such as masks, do not identify the examples
            _omit_from(stage, step, f"the inputs of {titles[0]} in step {step} are recorded as samples only")
            return stage
        if sentence := describe_unjoined(pair, step, "input"):
            _omit_from(stage, step, sentence)
            return stage
        if not _compare_step(stage, pair, step):
            return stage
    return stage


def _omit_from(stage: Stage, step: int, reason: str) -> None:
    """Note that a step and all later steps are not compared."""
    stage.omit(reason, f"only compared before step {step}" if stage.checks else NOT_COMPARED)


def _compare_step(stage: Stage, pair: RecordPair, step: int) -> bool:
    """Compare the batches of one step, and explain a difference. Return whether nothing differs."""
    arrays = _pair_step(stage, pair, step)
    order = find_order(arrays)
    if order is None and has_several_calls(pair, step):  # another model may compute the inputs of a call
        order = find_order(arrays, COMPUTED if step == pair.steps[0] else DRIFTED)
    if order is None and (order := find_order([array for array in arrays if not array.is_label])) is not None:
        # Only the labels differ, so that the inputs show the order of the examples
        arrays = [ArrayPair(x.name, x.a, sort_examples(x.b, order), x.is_label) for x in arrays]
    elif order is not None:
        if explanation := explain_reset(pair.a, pair.b, step):
            stage.add_mismatch(f"step {step}: state")
            stage.add_explanation("state", explanation)
        if not stage.causes:
            pair.orders[step] = order
        stage.checks.append(TensorCheck(f"step {step}: examples", 0.0))
        if sentence := describe_other_pairs(pair, step, order):
            stage.add_mismatch(f"step {step}: examples")
            stage.add_cause("order_between_calls", "b", "examples", sentence, confirmed=False)
        if not np.array_equal(order, np.arange(len(order))):
            stage.note = f"step {step} has the same examples in another order; they are compared in A's order"
        compare_weights_in_loss(stage, pair, step, order)
        compare_partial_labels(stage, pair, step, order)
        return not stage.causes
    differing_call = find_differing_call(pair, step, arrays)
    if differing_call is not None:
        explain_differing_call(stage, step, differing_call)
    else:
        _explain_step(stage, pair, step, arrays)
    return False


def _pair_step(stage: Stage, pair: RecordPair, step: int) -> list[ArrayPair]:
    """Return the pairs of inputs and labels of a step. Report the inputs that one side lacks, once."""
    count = sum(pair.a.batches.count_examples(step))
    inputs_a, inputs_b = (
        {
            name: array
            for name, array in side.batches.read_step(step, "input").items()
            if len(array) == count and name not in computed and not name.startswith(NOT_DATA)
        }
        for side in pair.sides
        for states in [[*list_carried_states(side, step), *list_states_of_calls(side, step)]]
        for computed in [{LABELS, *(state.received for state in states)}]
    )
    inputs_a, inputs_b = join_columns(inputs_a, inputs_b), join_columns(inputs_b, inputs_a)
    inputs, missing_in_b, missing_in_a = pair_arrays(inputs_a, inputs_b)
    inputs = replace_computed_inputs(inputs, pair, step) if pair.has_followed else inputs
    labels_a, labels_b = (side.batches.read_labels(step) for side in pair.sides)
    received = [*labels_a.values(), *labels_b.values()]
    # A script may use an array of its batch outside of the model, such as lengths, but a mask belongs to the model
    others = {side.name: [*side.batches.read_step(step, "other").values()] for side in pair.sides}
    for name, source, lacking in (
        *((name, inputs_a, "b") for name in missing_in_b),
        *((name, inputs_b, "a") for name in missing_in_a),
    ):
        if name in find_token_lengths(source):
            continue  # the other model finds the padding itself
        # A model that computes its own loss receives the labels, too; in the other script they may reach only the loss
        is_in_batch = find_equal(source[name], received + others[lacking]) is not None
        if not is_in_batch or (_is_binary(source[name]) and find_equal(source[name], received) is None):
            _report_missing(stage, step, name, source[name], lacking)
    labels = pair_arrays(labels_a, labels_b, are_labels=True)[0]
    return inputs + [label for label in labels if is_label(label) and not is_computed(pair, label, step)]


def _report_missing(stage: Stage, step: int, name: str, array: np.ndarray, lacking: str) -> None:
    """Add the input that a side lacks as a cause, unless it has no information, such as a mask without padding."""
    if not array.size or (array == array.flat[0]).all() or any(cause.tensor == name for cause in stage.causes):
        return
    if array.dtype.kind == "b" and MASK not in name:  # the other model may compute it from its inputs
        return
    if numbers_examples(array) or (array.ndim == 2 and (array == np.arange(array.shape[1])).all()):  # positions
        return
    cause = "attention_mask_missing" if MASK in name else "missing_array"
    sentence = f"step {step}: {lacking.upper()}'s model does not receive {name}"
    stage.add_mismatch(f"step {step}: {name}")
    stage.add_cause(cause, lacking, name, sentence)


def _is_binary(array: np.ndarray) -> bool:
    return bool(((array == 0) | (array == 1)).all())


def _explain_step(stage: Stage, pair: RecordPair, step: int, arrays: list[ArrayPair]) -> None:
    """Add causes that explain why the examples of a step differ."""
    count = len(arrays[0].a) if arrays else 0
    if _explain_other_order(stage, pair, step, arrays, count):
        return
    explanations: list[tuple[ArrayPair, Explanation]] = []
    for array in arrays:
        if array.a.shape != array.b.shape or not np.allclose(array.a, array.b, rtol=1e-5, atol=1e-7, equal_nan=True):
            explanations.append((array, explain_preparation(array.a, array.b, array.is_label)))
    if pair.has_followed and (
        (step != pair.steps[0] and omit_computed_inputs(stage, step, explanations))
        or note_changed_batches(stage, explanations)
    ):
        return
    explanations.sort(key=lambda entry: not entry[1].confirmed)
    for array, _ in explanations:
        stage.add_mismatch(f"step {step}: {array.title}")
    is_prepared = explanations and all(explanation.cause == "prepared_differently" for _, explanation in explanations)
    if is_prepared and step != pair.steps[0]:  # another preparation would show in the first step
        stage.note = (
            f"step {step}: the inputs differ for the first time, as with a random augmentation, or if the script "
            "computes inputs with the model that it trains"
        )
    explanations = [
        (array, known if known.confirmed else explain_input_as_label(array, arrays) or known)
        for array, known in explanations
    ]
    is_unknown = explanations and all(not explanation.confirmed for _, explanation in explanations)
    has_other_examples = not any(_identifies_examples(array) and are_close(array.a, array.b) for array in arrays)
    if _explain_together(stage, step, explanations, has_other_examples, is_first=step == pair.steps[0]):
        return
    for array, explanation in explanations:
        if explanation.confirmed or is_unknown:
            stage.add_explanation(array.title, explanation, prefix=f"step {step}: {array.title} of B ")


def _identifies_examples(array: ArrayPair) -> bool:
    """Check whether an input has other numbers in each example, as no mask and no label has."""
    is_float = not array.is_label and array.a.dtype.kind == "f"
    return is_float and len(np.unique(project_examples([array.a]))) == len(array.a)


def _explain_together(
    stage: Stage,
    step: int,
    explanations: list[tuple[ArrayPair, Explanation]],
    has_other_examples: bool,
    *,
    is_first: bool,
) -> bool:
    """Add one cause for all arrays that differ if B has other examples or computes its labels. Return whether it does.

    Args:
        stage: The stage.
        step: The step.
        explanations: The arrays that differ, with the explanation of each.
        has_other_examples: Whether no array shows that the examples are the same.
        is_first: Whether it is the first step.
    """
    # Labels do not count here, because with few values the labels of other examples may be equal by chance
    causes = {explanation.cause for array, explanation in explanations if not array.is_label}
    if causes == {"other_values"} and has_other_examples:
        stage.add_cause("other_examples", "b", "examples", f"step {step}: B has other examples", confirmed=False)
        return True
    are_computed = all(x.is_label and x.a.dtype.kind == "f" and not known.confirmed for x, known in explanations)
    if not explanations or is_first or not are_computed:
        return False
    title = explanations[0][0].title
    sentence = (
        f"step {step}: {title} of B has other values for equal inputs, and in earlier steps the same: it depends on "
        "something that changes in another way, such as a target network"
    )
    stage.add_cause("other_state_of_loss", "b", title, sentence, confirmed=False)
    return True


def _explain_other_order(stage: Stage, pair: RecordPair, step: int, arrays: list[ArrayPair], count: int) -> bool:
    """Check whether B's examples are in A's record at other steps or positions. If so, add the cause."""
    comparable = [array for array in arrays if array.a.shape[1:] == array.b.shape[1:]]
    inputs = [array for array in comparable if not array.is_label and array.a.dtype.kind in "fiub"]
    if not inputs or len(comparable) < len(arrays):
        return False
    step_a, step_b = (project_examples([getattr(array, side) for array in inputs]) for side in "ab")
    all_a = project_steps(pair.a, [array.name for array in inputs], pair.steps, inputs)
    names_b = [array.name_b for array in inputs]
    all_b = project_steps(pair.b, names_b, pair.steps, inputs)
    known_count = count_known(all_b, all_a)
    if len(all_a) == len(all_b) and np.isclose(all_a, all_b, rtol=1e-5).sum() > MOST * known_count:
        return False  # the common examples have the same positions, and the others are prepared in another way
    if known_count < max(2, LEAST_COMMON * len(all_b)) or count_known(step_b, step_a) == count:
        return False
    stage.add_mismatch(f"step {step}: examples")
    steps_b = [project_steps(pair.b, names_b, [number], inputs) for number in pair.steps]
    if repeated := _find_repeated_step(steps_b, pair.steps.index(step)):
        sentence = f"step {step}: B has the batch of step {pair.steps[repeated[0]]} again, and A another batch"
        if pair.steps.index(step) - 1 in repeated:
            stage.add_cause("repeated_batch", "b", "examples", sentence)
        else:
            sentence += ": the order of the examples is the same in each epoch (set_epoch)"
            stage.add_cause("epoch_not_reshuffled", "b", "examples", sentence)
        return True
    sentence = f"step {step}: {known_count} of the {len(all_b)} examples in B's recorded steps are in A's, "
    if known_count == len(all_b):
        stage.add_cause("order_of_examples", "b", "examples", sentence + f"in another order{describe_seeds(pair)}")
    else:
        sentence += f"at other positions: another order, or another part of the same data{describe_seeds(pair)}"
        stage.add_cause("order_of_examples", "b", "examples", sentence, confirmed=False)
    return True


def _find_repeated_step(batches: list[np.ndarray], index: int) -> list[int]:
    """Return the indices of the earlier batches that equal the batch at `index`."""
    batch = batches[index]
    return [
        number
        for number, earlier in enumerate(batches[:index])
        if len(earlier) == len(batch) and np.allclose(earlier, batch, rtol=1e-5)
    ]
