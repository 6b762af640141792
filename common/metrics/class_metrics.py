"""Metrics of classes, computed by scikit-learn.

With several classes, f1, precision, recall, iou and dice are means over the classes that occur (macro averages), and
auc is the mean over the classes of one class against the rest. A value that would divide by 0 counts as 0.
"""

from collections.abc import Callable

import numpy as np
from sklearn import metrics as sklearn_metrics

from common.config.metrics import CLASSES
from common.metrics.predictions import Predictions

# Functions of scikit-learn that take labels, predicted classes, `average` and `zero_division`.
AVERAGED: dict[str, Callable[..., float]] = {
    "f1": sklearn_metrics.f1_score,
    "precision": sklearn_metrics.precision_score,
    "recall": sklearn_metrics.recall_score,
    "iou": sklearn_metrics.jaccard_score,
    "dice": sklearn_metrics.f1_score,  # over all positions of all examples, the coefficient of a class is its F1
}
TOP = 5  # top5: the label is among this number of classes with the largest logits


def compute_class_metric(name: str, predictions: Predictions, ignore_label: int | None = None) -> float:
    """Return a metric of a task with one class for each example or position.

    Labels below 0, and those equal to `ignore_label`, do not count.
    """
    labels = predictions.labels
    if labels.dtype.kind == "f":  # the probability of each class
        labels = labels.argmax(-1)
    labels = labels.reshape(-1)
    is_counted = (labels >= 0) & (labels != ignore_label)
    if predictions.kind == CLASSES:
        return _compute_averaged(name, labels[is_counted], predictions.outputs.reshape(-1)[is_counted], "macro")
    logits = predictions.outputs.reshape(len(labels), -1)[is_counted]
    labels = labels[is_counted]
    if name == "auc":
        return _compute_auc(labels, logits)
    if name == "top5":
        label_logits = np.take_along_axis(logits, labels[:, None].astype(np.int64), 1)
        return float(np.mean((logits > label_logits).sum(1) < TOP))
    return _compute_averaged(name, labels, logits.argmax(1), "macro")


def compute_binary_metric(name: str, predictions: Predictions, ignore_label: int | None = None) -> float:
    """Return a metric of the answer yes, with one or several questions for each example.

    For labels [n, questions] the result is the mean over the questions. Labels with more axes count as one question.
    Labels equal to `ignore_label` do not count.
    """
    questions = predictions.labels.shape[1] if predictions.labels.ndim == 2 else 1
    values = []
    for labels, logits in zip(
        predictions.labels.reshape(-1, questions).T, predictions.outputs.reshape(-1, questions).T, strict=True
    ):
        is_counted = np.full(labels.shape, True) if ignore_label is None else labels != ignore_label
        answers, scores = labels[is_counted] > 0.5, logits[is_counted]
        if name == "auc":
            values.append(_compute_binary_auc(answers, scores))
        else:
            values.append(_compute_averaged(name, answers, scores > 0, "binary"))
    return float(np.mean(values))


def _compute_averaged(name: str, labels: np.ndarray, classes: np.ndarray, average: str) -> float:
    if name == "matthews":
        return float(sklearn_metrics.matthews_corrcoef(labels, classes))
    return float(AVERAGED[name](labels, classes, average=average, zero_division=0))


def _compute_auc(labels: np.ndarray, logits: np.ndarray) -> float:
    """Return the mean area over the classes that occur in the labels, each of them against all others."""
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    probabilities = exponentials / exponentials.sum(1, keepdims=True)
    return float(np.mean([_compute_binary_auc(labels == c, probabilities[:, c]) for c in np.unique(labels)]))


def _compute_binary_auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the area under the ROC curve; nan if all labels are equal."""
    return float(sklearn_metrics.roc_auc_score(labels, scores))
