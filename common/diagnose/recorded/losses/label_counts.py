"""The labels of a micro-batch that enter its loss."""

from collections.abc import Sequence

from common.diagnose.recorded.losses.label_forms import list_labels
from common.diagnose.recorded.recorded_batches import LABELS
from common.diagnose.recorded.recorded_side import RecordedSide


def find_ignored_class(side: RecordedSide) -> object:
    """Return the class that the loss function ignores, or None."""
    loss = side.record.facts["loss"]
    arguments = loss["arguments"] if loss is not None else {}
    return arguments.get("ignore_index", arguments.get("ignore_class"))  # the names in PyTorch and in Keras


def count_labels(side: RecordedSide, step: int) -> list[float]:
    """Return the number of labels that enter the loss of each micro-batch: all but ignored and negative labels.

    If the labels are no classes, or if the labels of one micro-batch are abridged, count the examples instead.
    """
    if side.batches.has_abridged_labels(step):
        return [float(count) for count in side.batches.count_examples(step)]
    counts, ignored, batches = [], find_ignored_class(side), side.batches
    for micro_batch, examples in zip(batches.list_micro_batches(step), batches.count_examples(step), strict=True):
        inputs = batches.read_micro_batch(step, *micro_batch, "input")
        passed = batches.read_micro_batch(step, *micro_batch, "label")
        labels = [inputs[LABELS]] if LABELS in inputs else [*passed.values()]
        integers = [label for label in labels if label.dtype.kind in "iu" and label.ndim]
        counts.append(float(((integers[0] >= 0) & (integers[0] != ignored)).sum()) if integers else float(examples))
    return counts


def have_other_tokens(sides: Sequence[RecordedSide], step: int) -> bool:
    """Check whether only one script's labels include those of padding: the other script packs its sequences."""
    counts = [
        sum(
            labels.size
            for micro_batch in side.batches.list_micro_batches(step)
            for labels in list_labels(side, step, micro_batch)
            if labels.dtype.kind in "iu"
        )
        for side in sides
    ]
    return all(counts) and counts[0] != counts[1]
