"""Labels that need care: labels without a row for each example of a step, and arrays that may not be labels.

A script may compute a second loss from a part of its examples only, such as the labelled ones. A is the reference
record of a diagnosis, and B the record that is compared with it.
"""

import re
from collections.abc import Sequence

import numpy as np

from common.diagnose.findings import EQUAL, Explanation, Stage
from common.diagnose.recorded.example_order import ArrayPair
from common.diagnose.recorded.preparation import explain_preparation
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_batches import LABELS, WEIGHTS_IN_LOSS
from common.diagnose.recorded.recorded_side import RecordedSide
from common.recording.record_format import OPERAND

NOT_COMPARED_LABELS = "labels are not compared"
LATER_LOSS = re.compile(r"\.\d+$")  # end of the names of labels that a later call of a loss received


def compare_partial_labels(stage: Stage, pair: RecordPair, step: int, order: np.ndarray) -> None:
    """Compare labels without a row for each example, if their rows are the same on both sides; else say that.

    Add a cause if only one script passes a label to its loss that both have in their batches.

    Args:
        stage: The stage "data".
        pair: The records.
        step: The step.
        order: The index among A's examples of each example of B.
    """
    if (unused := _explain_unused_label(pair, step)) is not None:
        stage.add_mismatch(f"step {step}: labels")
        stage.add_explanation("labels", unused, prefix=f"step {step}: ")
    labels_a, labels_b = (_list_partial_labels(side, step) for side in pair.sides)
    if not labels_a and not labels_b:
        return
    shapes_a, shapes_b = ([label.shape for _, label in labels] for labels in (labels_a, labels_b))
    if shapes_a != shapes_b or not np.array_equal(order, np.arange(len(order))):
        names = ", ".join(dict.fromkeys(name for name, _ in [*labels_a, *labels_b]))
        reason = f"the loss functions receive labels ({names}) that have no row for each example in step {step}"
        stage.omit(reason, extent=NOT_COMPARED_LABELS)
        return
    for (name, a), (_, b) in zip(labels_a, labels_b, strict=True):
        if not stage.compare_arrays(f"step {step}: label {name}", a.astype(np.float64), b.astype(np.float64)).differs:
            continue
        explanation = explain_preparation(a, b, is_label=True)
        stage.add_explanation(f"label {name}", explanation, prefix=f"step {step}: label {name} of B ")


def accept_unknown_labels(pair: RecordPair) -> None:
    """Let the data count as compared if only labels could not be, and the losses and gradients of all steps are equal.

    Each script may select the labels by outputs, such as those of the matched boxes of a detector.
    """
    data, *later = (pair.get_stage(name) for name in ("data", "loss", "gradients"))
    are_equal = all(stage.verdict == EQUAL and not stage.omission for stage in later)
    if are_equal and not data.causes and data.note.startswith(NOT_COMPARED_LABELS):
        data.omission = ""
        data.note = (
            f"{NOT_COMPARED_LABELS}, but the losses and gradients are: {data.note.partition(': ')[2].partition(';')[0]}"
        )


def is_label(array: ArrayPair) -> bool:
    """Check whether an array holds labels: what a script combines with the outputs may also be a mask or weights.

    Such an array of one side holds labels if it equals the other side's, or if a known mistake leads from one to the
    other.
    """
    if not any(name.startswith(OPERAND) for name in (array.name, array.name_b)):
        return True
    is_equal = array.a.shape == array.b.shape and np.allclose(array.a, array.b, rtol=1e-5, atol=1e-7, equal_nan=True)
    return is_equal or _has_renumbered(array) or explain_preparation(array.a, array.b, is_label=True).confirmed


def _has_renumbered(array: ArrayPair) -> bool:
    """Check whether B's labels are A's numbers in another order, each for one of A's."""
    if array.a.shape != array.b.shape or array.a.dtype.kind not in "iu" or array.b.dtype.kind not in "iu":
        return False
    values_a, values_b = np.unique(array.a), np.unique(array.b)
    pairs = np.unique(np.stack([array.a.ravel(), array.b.ravel()]), axis=1)
    return np.array_equal(values_a, values_b) and 1 < len(values_a) == pairs.shape[1]


def _list_partial_labels(side: RecordedSide, step: int) -> list[tuple[str, np.ndarray]]:
    """Return names and arrays of the labels of several losses that have no row for each example, by micro-batch."""
    known = side.batches.read_labels(step)
    labels = []
    for micro_batch in side.batches.list_micro_batches(step) if LABELS not in known else ():
        part = side.batches.read_micro_batch(step, *micro_batch, "label")
        of_several = {LATER_LOSS.sub("", name) for name in part if LATER_LOSS.search(name)}
        labels += [
            (name, label)
            for name, label in part.items()
            if name not in known and label.ndim and LATER_LOSS.sub("", name) in of_several - {*WEIGHTS_IN_LOSS}
        ]
    return labels


def explain_input_as_label(array: ArrayPair, arrays: Sequence[ArrayPair]) -> Explanation | None:
    """Check whether the labels of one side are an input of the other side's, such as noisy images."""
    inputs = [other for other in arrays if not other.is_label and other.a.shape == array.a.shape == array.b.shape]
    for name, label, other_label in (("B", array.b, array.a), ("A", array.a, array.b)) if array.is_label else ():
        same = [x for x in inputs if np.allclose(x.a, label, rtol=1e-5, atol=1e-7)]
        if same and not np.allclose(same[0].a, other_label, rtol=1e-5, atol=1e-7):
            sentence = f"differs: only the labels of {name} are the {same[0].title}"
            return Explanation("input_as_label", sentence)
    return None


def _explain_unused_label(pair: RecordPair, step: int) -> Explanation | None:
    """Explain a label that only one script passes to its loss, if the other one has it in its batch; else None.

    All other labels must be equal: a script may compute a label from an array of its batch.

    Args:
        pair: The records.
        step: The step.
    """
    labels = [[*side.batches.read_labels(step).items()] for side in pair.sides]
    for index, side in enumerate(pair.sides):
        received, expected = labels[index], labels[1 - index]
        known = [any(np.array_equal(x, y) for _, y in expected) for _, x in received]
        if side.record.facts["loss"] is None or not known or not all(known):
            continue
        for name, label in expected:
            if any(np.array_equal(label, x) for _, x in received):
                continue
            others = side.batches.read_step(step, "other").items()
            if key := next((key for key, x in others if np.array_equal(label, x)), ""):
                titles = side.name.upper(), pair.sides[1 - index].name.upper()
                sentence = (
                    f"{titles[0]}'s loss does not receive {key} of its batch, which is label {name} in {titles[1]}"
                )
                return Explanation("missing_array", sentence, side=side.name)
    return None
