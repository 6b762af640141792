"""Labels of a micro-batch, and its outputs, in the forms in which the formulas of losses take them."""

from collections.abc import Mapping

import numpy as np

from common.diagnose.recorded.recorded_batches import (
    CLASS_WEIGHTS,
    LABELS,
    POSITIVE_WEIGHTS,
    SAMPLE_WEIGHTS,
    WEIGHTS_IN_LOSS,
)
from common.diagnose.recorded.recorded_side import RecordedSide


def read_label_weights(part: Mapping[str, np.ndarray], labels: np.ndarray) -> np.ndarray | None:
    """Return the weights of the labels of a micro-batch in the loss, in the shape of the labels; None without any."""
    if (weights := part.get(CLASS_WEIGHTS)) is not None:
        if labels.dtype.kind in "iu" and weights.ndim == 1 and len(weights):
            is_class = (labels >= 0) & (labels < len(weights))  # else an ignored label, such as -100
            return np.where(is_class, weights[np.where(is_class, labels, 0)], 0)
        return _broadcast(weights, labels)  # of a binary cross entropy
    if (weights := part.get(POSITIVE_WEIGHTS)) is not None:
        weights = _broadcast(weights, labels)
        return None if weights is None or not np.isin(labels, (0, 1)).all() else np.where(labels == 1, weights, 1)
    weights = part.get(SAMPLE_WEIGHTS)
    if weights is None or weights.size == labels.size:
        return weights
    is_by_example = weights.ndim and weights.size == len(labels)
    return np.broadcast_to(weights.reshape(-1, *[1] * (labels.ndim - 1)), labels.shape) if is_by_example else None


def _broadcast(weights: np.ndarray, labels: np.ndarray) -> np.ndarray | None:
    """Return weights in the shape of the labels; None if the sizes do not fit."""
    return np.broadcast_to(weights, labels.shape) if weights.shape in ((), (1,), labels.shape[1:]) else None


def list_labels(side: RecordedSide, step: int, micro_batch: tuple[int, int]) -> list[np.ndarray]:
    """Return the labels that the loss function or the model received in a micro-batch."""
    return [
        *(
            x
            for name, x in side.batches.read_micro_batch(step, *micro_batch, "label").items()
            if name not in WEIGHTS_IN_LOSS and x.ndim
        ),
        *(x for name, x in side.batches.read_micro_batch(step, *micro_batch, "input").items() if name == LABELS),
    ]


def list_class_layouts(outputs: np.ndarray, labels: np.ndarray) -> list[np.ndarray]:
    """Return outputs with the classes in the last axis, once for each layout that fits the labels.

    PyTorch's loss functions have the classes in the second axis. If no layout fits, the outputs are returned unchanged.
    """
    moved = np.moveaxis(outputs, 1, -1)
    fitting = [array for array in (outputs, moved) if _shape_labels(labels, array).shape == array.shape[:-1]]
    return [outputs, moved] if len(fitting) == 2 and outputs.ndim > 2 else fitting[:1] or [outputs]


def list_label_forms(labels: np.ndarray, outputs: np.ndarray) -> list[np.ndarray]:
    """Return labels in the shape of the outputs without the classes. Return one-hot labels also as class numbers."""
    labels = _shape_labels(labels, outputs)
    is_one_hot = labels.shape == outputs.shape and labels.ndim > 1 and labels.shape[-1] > 1
    is_one_hot = is_one_hot and bool(np.isin(labels, (0, 1)).all() and (labels.sum(-1) == 1).all())
    return [labels, labels.argmax(-1)] if is_one_hot else [labels]


def _shape_labels(labels: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Return labels in the shape of the outputs without the classes, also if the script flattened them."""
    if labels.ndim > 1 and labels.shape[-1] == 1 < outputs.shape[-1]:
        labels = labels[..., 0]
    is_flat = labels.ndim == 1 and outputs.ndim > 2 and labels.size == outputs[..., 0].size
    return labels.reshape(outputs.shape[:-1]) if is_flat else labels
