"""The weight of each label in the loss, and the number of losses that an example adds to a global batch."""

import numpy as np

from common.config.tasks import BinarySettings, ClassTaskSettings, TaskSettings

NO_LABEL = -1  # padding of ragged labels, unless the task ignores another label


def get_padding_label(task: TaskSettings | None) -> int:
    """Return the label that pads ragged labels. A task that supports ragged labels ignores it."""
    ignored: int | None = getattr(task, "ignore_label", None)
    return NO_LABEL if ignored is None else ignored


def weigh_labels(task: TaskSettings, labels: np.ndarray) -> np.ndarray:
    """Return the weight of each label in the loss, float64 in the shape of the labels; 0 for an ignored label."""
    if not isinstance(task, ClassTaskSettings):
        return (labels >= 0).astype(np.float64)
    is_labelled = np.full(labels.shape, True) if task.ignore_label is None else labels != task.ignore_label
    if task.class_weights is None:
        return is_labelled.astype(np.float64)
    class_weights, valid_labels = np.asarray(task.class_weights, np.float64), np.where(is_labelled, labels, 0)
    if isinstance(task, BinarySettings):  # a label between 0, no, and 1, yes, gets a weight between both weights
        answers = valid_labels.astype(np.float64)
        return is_labelled * (class_weights[0] * (1 - answers) + class_weights[1] * answers)
    return is_labelled * class_weights[valid_labels]


def count_losses(task: TaskSettings, labels: np.ndarray) -> np.ndarray:
    """Return the number of losses that each example adds to a global batch, float64 [n].

    If each label has a loss of its own, the number is the sum of the weights of the example's labels. Otherwise it is
    1, or 0 if all labels of the example are ignored.
    """
    axes = tuple(range(1, labels.ndim))
    if task.has_label_losses(labels.ndim, labels.dtype.kind != "f"):
        return weigh_labels(task, labels).sum(axes)
    if not isinstance(task, ClassTaskSettings) or task.ignore_label is None:
        return np.ones(len(labels))
    return (labels != task.ignore_label).any(axes).astype(np.float64)
