"""Formulas of loss functions that reduce the losses of a micro-batch to one number."""

from collections.abc import Iterator

import numpy as np
from scipy.special import log_softmax, softmax

from common.diagnose.explain.loss_formulas import (
    DOUBLE_SIGMOID,
    KERAS_EPSILON,
    NOT_FROM_LOGITS,
    SMOOTHING_FACTORS,
    compute_formulas,
    encode_one_hot,
)
from common.diagnose.recorded.losses.regularizers import PENALTY

# Largest relative difference between a loss and the formula that computes it, by the precision of the outputs
CLOSE = {"float64": 1e-9, "float32": 2e-5, "bfloat16": 1e-2}
IGNORED_LABEL = -100
DOUBLE_SOFTMAX = "cross entropy of probabilities taken as logits"
LOSS_REDUCTION = "loss_reduction"  # name of the cause
WITH_PENALTY = ", plus the penalty of the regularizers"


def find_formulas(
    outputs: np.ndarray, labels: np.ndarray, loss: float, precision: str, weights: np.ndarray | None = None,
    ignored: object = None, are_logits: bool = False,
) -> list[str]:  # fmt: skip
    """Return the names of the formulas that compute a loss from the outputs and labels of a micro-batch.

    Args:
        outputs: Outputs [n, ..., classes] or [n, values].
        labels: Labels [n, ...].
        loss: The loss.
        precision: Precision of the outputs.
        weights: Weights of the labels [n, ...], if the loss function received weights of classes or examples.
        ignored: The class that the loss function ignores, if there is one.
        are_logits: Whether the outputs are known to be no probabilities.
    """
    if labels.dtype.kind in "iu" and isinstance(ignored, int):
        labels = np.where(labels == ignored, IGNORED_LABEL, labels.astype(np.int64))
    if not outputs.size or not labels.size:
        return []
    weights = None if weights is None or weights.size != labels.size else weights
    tolerance = CLOSE[precision] * max(abs(loss), 1e-3)
    with np.errstate(all="ignore"):  # outputs may have huge numbers, or NaN, which no loss equals
        candidates = list_formulas(outputs.astype(np.float64), labels, weights, are_logits)
        return [name for name, value in candidates if abs(value - loss) <= tolerance]


def list_formulas(
    outputs: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None, are_logits: bool = False
) -> Iterator[tuple[str, float]]:
    """Yield the names and values of all formulas that fit the shapes, the most usual first."""
    has_classes = outputs.shape[-1] > 1 and labels.dtype.kind in "iu"
    if has_classes and outputs.ndim == labels.ndim + 1 and outputs.shape[:-1] == labels.shape:
        yield from _list_cross_entropies(outputs.reshape(-1, outputs.shape[-1]), labels.ravel(), labels, weights)
        return
    if len(outputs) != len(labels):
        return  # the loss is computed from a part of the outputs, such as those of the nodes of a graph
    for name, losses in compute_formulas(outputs, labels, are_logits).items():
        if weights is not None and weights.size == losses.size:
            yield from _weigh(name, losses, weights.ravel())
        reductions = {"mean": losses.mean(), "sum": losses.sum()}
        if (count := outputs[0].size) > 1:
            reductions |= {"sum divided by the examples": losses.mean() * count, "sum of all": losses.sum() * count}
        for reduction, value in reductions.items():
            yield f"{name}, {reduction}", float(value)


def _list_cross_entropies(
    rows: np.ndarray, flat: np.ndarray, labels: np.ndarray, weights: np.ndarray | None
) -> Iterator[tuple[str, float]]:
    """Yield cross entropies of outputs [rows, classes] for labels [rows]."""
    classes, is_counted = rows.shape[1], flat >= 0
    target = encode_one_hot(np.clip(flat, 0, classes - 1), classes)
    are_probabilities = bool((rows >= 0).all() and np.allclose(rows.sum(1), 1, atol=CLOSE["bfloat16"]))
    log_of_softmax = log_softmax(rows, 1)
    names: dict[str, np.ndarray] = {}
    if are_probabilities:
        clipped = np.clip(rows / rows.sum(1, keepdims=True), KERAS_EPSILON, 1 - KERAS_EPSILON)
        names["cross entropy"] = -(target * np.log(clipped)).sum(1)
    for smoothing in SMOOTHING_FACTORS:
        smoothed = target * (1 - smoothing) + smoothing / classes
        name = DOUBLE_SOFTMAX if are_probabilities else "cross entropy"
        names[_name_smoothed(name, smoothing)] = -(smoothed * log_of_softmax).sum(1)
    if not are_probabilities:
        log_of_double = log_softmax(softmax(rows, 1), 1)
        for smoothing in SMOOTHING_FACTORS:
            smoothed = target * (1 - smoothing) + smoothing / classes
            names[_name_smoothed(DOUBLE_SOFTMAX, smoothing)] = -(smoothed * log_of_double).sum(1)
        clipped = np.clip(rows, KERAS_EPSILON, 1 - KERAS_EPSILON)  # Keras's formula if labels are numbers of classes
        yield from _reduce(
            NOT_FROM_LOGITS, -(target * log_softmax(np.log(clipped), 1)).sum(1), flat, is_counted, labels, weights
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            clipped = np.clip(rows / rows.sum(1, keepdims=True), KERAS_EPSILON, 1 - KERAS_EPSILON)
            names[NOT_FROM_LOGITS] = -(target * np.log(clipped)).sum(1)
    for name, losses in names.items():
        yield from _reduce(name, losses, flat, is_counted, labels, weights)


def _name_smoothed(name: str, smoothing: float) -> str:
    return f"{name} with label smoothing of {smoothing:g}" if smoothing else name


def count_common_parts(a: str, b: str) -> int:
    """Count how many of two parts of a formula's name two formulas share: the label smoothing, and the reduction."""
    parts = [(name.partition(",")[0].partition(" with ")[2], name.partition(",")[2]) for name in (a, b)]
    return sum(x == y for x, y in zip(*parts, strict=True))


def _reduce(
    name: str, losses: np.ndarray, flat: np.ndarray, is_counted: np.ndarray, labels: np.ndarray,
    weights: np.ndarray | None,
) -> Iterator[tuple[str, float]]:  # fmt: skip
    """Yield the reductions of the losses [rows] to one number."""
    counted = losses[is_counted]
    if not counted.size:
        return
    if weights is not None:
        yield from _weigh(name, counted, weights.ravel()[is_counted])
    yield f"{name}, mean", float(counted.mean())
    yield f"{name}, sum", float(counted.sum())
    if not is_counted.all():
        yield f"{name}, sum divided by all labels, also ignored ones", float(counted.sum() / losses.size)
        yield f"{name}, mean over all labels, also ignored ones", float(losses.mean())
    if labels.ndim > 1:
        yield f"{name}, sum divided by the examples", float(counted.sum() / len(labels))
        is_token = is_counted & (flat != 0)
        if is_token.any() and not is_token.all():
            yield f"{name}, mean over labels other than 0", float(losses[is_token].mean())
            yield (
                f"{name}, sum over labels other than 0 divided by all labels",
                float(losses[is_token].sum() / flat.size),
            )
        means = [
            row[keep].mean()
            for row, keep in zip(losses.reshape(len(labels), -1), is_counted.reshape(len(labels), -1), strict=True)
            if keep.any()
        ]
        yield f"{name}, mean of the examples' means", float(np.mean(means))


def _weigh(name: str, losses: np.ndarray, weights: np.ndarray) -> Iterator[tuple[str, float]]:
    """Yield the reductions of losses [rows] with the weights [rows] of their classes or examples."""
    products, total = losses * weights.astype(np.float64), float(weights.sum())
    if total:
        yield f"{name}, mean weighted by class", float(products.sum() / total)
    yield f"{name}, mean of losses times weights", float(products.mean())
    yield f"{name}, sum of losses times weights", float(products.sum())


def name_difference(a: str, b: str) -> str:
    """Return the name of the cause by the first part in which two formulas differ."""
    for words, cause in (
        (DOUBLE_SIGMOID, "double_sigmoid"),  # its words contain those of the double softmax
        (DOUBLE_SOFTMAX, "double_softmax"),
        (NOT_FROM_LOGITS, "from_logits"),
        (WITH_PENALTY, PENALTY),
    ):
        if (words in a) != (words in b):
            return cause
    kind_a, _, reduction_a = a.partition(", ")
    kind_b, _, reduction_b = b.partition(", ")
    if kind_a != kind_b:
        both = kind_a.startswith("cross entropy") and kind_b.startswith("cross entropy")
        return "label_smoothing" if both else "loss_function"
    if "ignored" in reduction_a + reduction_b or "other than 0" in reduction_a + reduction_b:
        return "ignored_labels"
    return "class_weights" if "weight" in reduction_a + reduction_b else LOSS_REDUCTION
