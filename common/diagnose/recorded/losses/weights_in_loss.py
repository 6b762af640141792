"""Comparison of the weights of classes, or of examples, that both loss functions receive.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from collections.abc import Mapping

import numpy as np

from common.diagnose.findings import Stage
from common.diagnose.recorded.example_order import sort_examples
from common.diagnose.recorded.losses.label_counts import find_ignored_class
from common.diagnose.recorded.losses.label_forms import read_label_weights
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_batches import CLASS_WEIGHTS, SAMPLE_WEIGHTS, WEIGHTS_IN_LOSS
from common.diagnose.recorded.recorded_side import RecordedSide


def compare_weights_in_loss(stage: Stage, pair: RecordPair, step: int, order: np.ndarray) -> None:
    """Compare the weights of classes, or of examples, that both loss functions receive.

    Args:
        stage: The stage "data".
        pair: The records.
        step: The step.
        order: The index among A's examples of each example of B.
    """
    # Of the first process and micro-batch
    parts = [side.batches.read_micro_batch(step, 0, 0, "label") for side in pair.sides]
    if all(CLASS_WEIGHTS in part for part in parts):
        a, b = (part[CLASS_WEIGHTS] for part in parts)
        kind = "class weights"
    elif all(SAMPLE_WEIGHTS in part for part in parts):
        kind = "sample weights"
        labels = [side.batches.read_step(step, "label") for side in pair.sides]
        if not all(SAMPLE_WEIGHTS in arrays for arrays in labels):
            labels = parts  # a weight for the whole batch, or for each of several losses
        a, b = (arrays[SAMPLE_WEIGHTS] for arrays in labels)
        b = sort_examples(b, order) if b.shape[:1] == order.shape else b
    else:
        weights = [_read_weights_of_labels(side, part) for side, part in zip(pair.sides, parts, strict=True)]
        if weights[0] is None or weights[1] is None or not np.array_equal(order, np.arange(len(order))):
            return  # the stage "loss" finds out whether only one side has weights
        a, b = (array.ravel() for array in weights if array is not None)
        kind = "weights of the labels"
    a, b = a.astype(np.float64), b.astype(np.float64)
    if a.shape == b.shape and stage.compare_arrays(f"step {step}: {kind}", a, b, precision="float32").differs:
        factor = float((a * b).sum() / (a * a).sum()) if a.any() else 0.0
        is_scaled = np.allclose(a * factor, b, rtol=1e-5)
        sentence = f"the {kind} of B are {f'{factor:.6g} times' if is_scaled else 'different from'} A's"
        stage.add_cause("class_weights", "b", kind, f"step {step}: {sentence}")


def _read_weights_of_labels(side: RecordedSide, part: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return the weights of the labels of a micro-batch, however the loss function received them; None without any.

    The weight of a label that the loss function ignores is 0.
    """
    labels = [x for name, x in part.items() if name not in WEIGHTS_IN_LOSS and x.ndim]
    weights = read_label_weights(part, labels[0]) if len(labels) == 1 else None
    ignored = find_ignored_class(side)
    if weights is None or weights.shape != labels[0].shape or not isinstance(ignored, int):
        return weights
    return np.where(labels[0] == ignored, 0, weights)
