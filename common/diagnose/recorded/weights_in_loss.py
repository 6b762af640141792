"""Comparison of the weights of classes, or of examples, that both loss functions receive.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from collections.abc import Mapping

import numpy as np

from common.diagnose.findings import Stage
from common.diagnose.recorded.label_forms import read_label_weights
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_batches import CLASS_WEIGHTS, SAMPLE_WEIGHTS, WEIGHTS_IN_LOSS


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
        a, b = (part[CLASS_WEIGHTS].astype(np.float64) for part in parts)
        kind = "class weights"
    elif all(SAMPLE_WEIGHTS in part for part in parts):
        a, b = (side.batches.read_step(step, "label")[SAMPLE_WEIGHTS].astype(np.float64) for side in pair.sides)
        kind = "sample weights"
        b = b[np.argsort(order)] if len(b) == len(order) else b
    else:
        known = [_read_weights_of_labels(part) for part in parts]
        if known[0] is None or known[1] is None or not np.array_equal(order, np.arange(len(order))):
            return  # the stage "loss" finds out whether only one side has weights
        a, b = (weights.astype(np.float64).ravel() for weights in known if weights is not None)
        kind = "weights of the labels"
    if a.shape == b.shape and stage.compare_arrays(f"step {step}: {kind}", a, b, precision="float32").differs:
        factor = float((a * b).sum() / (a * a).sum()) if a.any() else 0.0
        is_scaled = np.allclose(a * factor, b, rtol=1e-5)
        sentence = f"the {kind} of B are {f'{factor:.6g} times' if is_scaled else 'different from'} A's"
        stage.add_cause("class_weights", "b", kind, f"step {step}: {sentence}")


def _read_weights_of_labels(part: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return the weights of the labels of a micro-batch, however the loss function received them; None without any."""
    labels = [x for name, x in part.items() if name not in WEIGHTS_IN_LOSS and x.ndim]
    return read_label_weights(part, labels[0]) if len(labels) == 1 else None
