"""The labels of a micro-batch that enter its loss."""

from common.diagnose.recorded.recorded_side import LABELS, RecordedSide


def find_ignored_class(side: RecordedSide) -> object:
    """Return the class that the loss function ignores, or None."""
    loss = side.record.facts["loss"]
    arguments = loss["arguments"] if loss is not None else {}
    return arguments.get("ignore_index", arguments.get("ignore_class"))  # the names in PyTorch and in Keras


def count_labels(side: RecordedSide, step: int) -> list[float]:
    """Return the number of labels of each micro-batch that enter its loss: neither ignored nor negative ones.

    If the labels are no classes, or if those of one micro-batch are abridged, examples are counted instead.
    """
    if side.has_abridged_labels(step):
        return [float(count) for count in side.count_examples(step)]
    counts, ignored = [], find_ignored_class(side)
    for micro_batch, examples in zip(side.list_micro_batches(step), side.count_examples(step), strict=True):
        inputs = side.read_part(step, *micro_batch, "input")
        labels = [inputs[LABELS]] if LABELS in inputs else [*side.read_part(step, *micro_batch, "label").values()]
        integers = [label for label in labels if label.dtype.kind in "iu" and label.ndim]
        counts.append(float(((integers[0] >= 0) & (integers[0] != ignored)).sum()) if integers else float(examples))
    return counts
