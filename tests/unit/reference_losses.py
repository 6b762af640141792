"""Reference implementations of the losses and metrics of tasks in NumPy, from their definitions."""

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import expit, log_expit, log_softmax, softmax, xlogy

from common.config.tasks import (
    BinarySettings,
    ClassificationSettings,
    ClassTaskSettings,
    LanguageModelSettings,
    RegressionSettings,
    TaskSettings,
)

CLASS_KEYS: dict[str, Any] = {
    "label_smoothing": 0.0,
    "class_weights": None,
    "ignore_label": -100,
    "gamma": 2.0,
    "dice_smooth": 1e-5,
    "loss": "cross_entropy",
}
CLASSIFICATION = ClassificationSettings("classification", **CLASS_KEYS)
BINARY = BinarySettings("binary", **{**CLASS_KEYS, "ignore_label": None}, alpha=None)
REGRESSION = RegressionSettings("regression", loss="mse", delta=0.7, quantile=0.3)

stream = np.random.default_rng(0)
LOGITS, NUMBERS = stream.standard_normal((5, 4)), stream.standard_normal((5, 3))
CLASSES = np.array([0, 3, 1, 1, 2], np.int32)
SHARES = stream.dirichlet(np.ones(4), 5).astype(np.float32)
SPARSE_SHARES = np.array([[1, 0, 0, 0], [0.5, 0, 0.5, 0], [0, 0, 0, 1]] + [[0.25] * 4] * 2, np.float32)
TOKENS = np.array([[1, 0, -1], [2, 3, 1], [-1, -1, -1], [0, 0, 2], [3, -1, 1]], np.int32)
TOKEN_LOGITS = stream.standard_normal((5, 3, 4))
PIXELS = stream.integers(0, 4, (5, 2, 3)).astype(np.int32)
PIXELS[0, 0, 1] = PIXELS[3, 1, :2] = PIXELS[2] = -100  # example 2 has no labels
PIXEL_LOGITS = stream.standard_normal((5, 2, 3, 4))
PIXEL_LOGITS[1] *= 100  # losses must stay finite
ANSWERS = np.where(PIXELS >= 0, PIXELS > 1, -1).astype(np.float32)
LARGE = np.array([[-100, 100, 100], [100, -100, -100], [0, 2, -0.5], [50, -50, 1e-3], [1, 2, 3]], np.float64)
YES_OR_NO, SOFT = (SHARES > 0.2).astype(np.float32), SHARES[:, :3]
COUNTS = np.array([[0, 1, 4], [2, 0, 7], [1, 1, 1], [0, 0, 0], [9, 3, 2]], np.float32)
WEIGHTS = [0.5, 1.0, 2.0, 0.0]

Case = tuple[TaskSettings, np.ndarray, np.ndarray]  # the task, the outputs and the labels


def choose(task: ClassTaskSettings | RegressionSettings, **values: object) -> TaskSettings:
    """Return a task with other values of some keys."""
    return replace(task, **values)  # type: ignore[arg-type]


CASES: dict[str, Case] = {
    "classes": (CLASSIFICATION, LOGITS, CLASSES),
    "smooth classes": (choose(CLASSIFICATION, label_smoothing=0.1), LOGITS, CLASSES),
    "focal classes": (choose(CLASSIFICATION, loss="focal"), LOGITS, CLASSES),
    "focal classes of large logits": (choose(CLASSIFICATION, loss="focal", gamma=1.5), 100 * LOGITS, CLASSES),
    "focal loss of one class": (choose(CLASSIFICATION, loss="focal"), LOGITS[:, :1], np.zeros(5, np.int32)),
    "hinge of classes": (choose(CLASSIFICATION, loss="hinge"), LOGITS, CLASSES),
    "hinge of large logits": (choose(CLASSIFICATION, loss="hinge"), 100 * LOGITS, CLASSES),
    "shares": (CLASSIFICATION, LOGITS, SHARES),
    "smooth shares": (choose(CLASSIFICATION, label_smoothing=0.2), LOGITS, SHARES),
    "kl of shares": (choose(CLASSIFICATION, loss="kl"), LOGITS, SHARES),
    "kl of shares of 0": (choose(CLASSIFICATION, loss="kl"), 100 * LOGITS, SPARSE_SHARES),
    "pixels": (CLASSIFICATION, PIXEL_LOGITS, PIXELS),
    "smooth pixels": (choose(CLASSIFICATION, label_smoothing=0.1), PIXEL_LOGITS, PIXELS),
    "weighted pixels": (choose(CLASSIFICATION, class_weights=WEIGHTS), PIXEL_LOGITS, PIXELS),
    "all pixels labelled": (choose(CLASSIFICATION, ignore_label=None), PIXEL_LOGITS, np.maximum(PIXELS, 0)),
    "focal pixels": (choose(CLASSIFICATION, loss="focal", class_weights=WEIGHTS), PIXEL_LOGITS, PIXELS),
    "hinge of pixels": (choose(CLASSIFICATION, loss="hinge"), PIXEL_LOGITS, PIXELS),
    "dice of pixels": (choose(CLASSIFICATION, loss="dice"), PIXEL_LOGITS, PIXELS),
    "dice with another smooth term": (choose(CLASSIFICATION, loss="dice", dice_smooth=1.0), PIXEL_LOGITS, PIXELS),
    "dice of one class": (choose(CLASSIFICATION, loss="dice"), PIXEL_LOGITS[..., :1], np.minimum(PIXELS, 0)),
    "tokens with another ignored label": (
        choose(CLASSIFICATION, ignore_label=255),
        TOKEN_LOGITS,
        np.where(TOKENS < 0, 255, TOKENS).astype(np.int32),
    ),
    "yes or no": (BINARY, LOGITS[:, :1], (CLASSES > 0).astype(np.int32)),
    "smooth yes or no": (choose(BINARY, label_smoothing=0.1), LOGITS[:, 0], (CLASSES > 0).astype(np.int32)),
    "weighted yes or no": (choose(BINARY, class_weights=[0.2, 0.5]), LOGITS[:, 0], (CLASSES > 0).astype(np.int32)),
    "several yes or no": (BINARY, LOGITS, YES_OR_NO),
    "several with an ignored label": (choose(BINARY, ignore_label=-1), PIXEL_LOGITS[..., 0], ANSWERS),
    "several with weights": (choose(BINARY, class_weights=[1.0, 3.0]), LOGITS[:, :3], SOFT),
    "several integers with weights": (
        choose(BINARY, class_weights=[1.0, 3.0], ignore_label=-1),
        PIXEL_LOGITS[..., 0],
        ANSWERS.astype(np.int32),
    ),
    "focal yes or no": (choose(BINARY, loss="focal", alpha=0.25), LOGITS, YES_OR_NO),
    "focal loss of soft labels": (choose(BINARY, loss="focal", gamma=3.0), LOGITS[:, :3], SOFT),
    "focal loss of large logits": (choose(BINARY, loss="focal"), LARGE, YES_OR_NO[:, :3]),
    "hinge of yes or no": (choose(BINARY, loss="hinge"), LARGE, YES_OR_NO[:, :3]),
    "hinge at its corners": (choose(BINARY, loss="hinge"), 2.0 * YES_OR_NO - 1, YES_OR_NO),
    "dice of yes or no": (choose(BINARY, loss="dice"), LARGE, YES_OR_NO[:, :3]),
    "dice with an ignored label": (choose(BINARY, loss="dice", ignore_label=-1), PIXEL_LOGITS[..., 0], ANSWERS),
    "mse": (REGRESSION, NUMBERS, LOGITS[:, :3].astype(np.float32)),
    "mae": (choose(REGRESSION, loss="mae"), NUMBERS, LOGITS[:, :3].astype(np.float32)),
    "huber": (choose(REGRESSION, loss="huber"), NUMBERS[:, :1], LOGITS[:, 0].astype(np.float32)),
    "poisson": (choose(REGRESSION, loss="poisson"), NUMBERS, COUNTS),
    "poisson of large numbers": (choose(REGRESSION, loss="poisson"), LARGE, COUNTS),
    "quantile": (choose(REGRESSION, loss="quantile"), NUMBERS, LOGITS[:, :3].astype(np.float32)),
    "quantile of integers": (choose(REGRESSION, loss="quantile", quantile=0.9), NUMBERS, COUNTS.astype(np.int32)),
    "language model": (LanguageModelSettings("language_model"), TOKEN_LOGITS, TOKENS),
}


def expected(task: TaskSettings, outputs: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Return the loss and the metric of each example, float64 [5]."""
    labels = labels.astype(np.float64) if labels.dtype.kind == "f" else labels
    if isinstance(task, ClassificationSettings):
        return _expect_classification(task, outputs, labels)
    if isinstance(task, LanguageModelSettings):
        picked = np.take_along_axis(log_softmax(outputs, -1), np.maximum(labels, 0)[..., None], -1)[..., 0]
        return {"losses": -(picked * (labels >= 0)).sum(1), "metric": (outputs.argmax(-1) == labels).sum(1)}
    outputs, labels = outputs.reshape(5, -1), labels.reshape(5, -1).astype(float)
    if isinstance(task, BinarySettings):
        return _expect_binary(task, outputs, labels)
    assert isinstance(task, RegressionSettings)
    error = outputs - labels
    off = np.abs(error)
    losses = {
        "mse": off**2,
        "mae": off,
        "huber": np.where(off < task.delta, off**2 / 2, task.delta * (off - task.delta / 2)),
        "poisson": np.exp(outputs) - labels * outputs,
        "quantile": np.where(error < 0, -task.quantile * error, (1 - task.quantile) * error),
    }
    metric = np.abs(np.exp(outputs) - labels) if task.loss == "poisson" else off
    return {"losses": losses[task.loss].mean(1), "metric": metric.mean(1)}


def _expect_classification(
    task: ClassificationSettings, outputs: np.ndarray, labels: np.ndarray
) -> dict[str, np.ndarray]:
    classes = outputs.shape[-1]
    is_ignored = np.zeros(labels.shape, bool) if labels.dtype.kind == "f" else labels == task.ignore_label
    shares: Any = labels if labels.dtype.kind == "f" else np.eye(classes)[np.where(is_ignored, 0, labels)]
    smooth = shares * (1 - task.label_smoothing) + task.label_smoothing / classes
    logs, p = log_softmax(outputs, -1), softmax(outputs, -1)
    is_right = outputs.argmax(-1) == shares.argmax(-1)
    other = np.where(shares == 1, 0, p).sum(-1)  # 1 - p of the right class would lose digits
    losses = {
        "cross_entropy": -(smooth * logs).sum(-1),
        "focal": -(other**task.gamma) * (shares * logs).sum(-1),
        "hinge": np.maximum(0, 1 + ((1 - shares) * outputs).max(-1) - (shares * outputs).sum(-1)),
        "kl": (xlogy(shares, shares) - shares * logs).sum(-1),
    }
    if labels.dtype.kind == "f" or labels.ndim == 1:
        return {"losses": losses[task.loss], "metric": is_right}
    weights = ~is_ignored * (np.asarray(task.class_weights or [1.0] * classes)[np.where(is_ignored, 0, labels)])
    axes = tuple(range(1, labels.ndim))
    if task.loss != "dice":
        return {"losses": (weights * losses[task.loss]).sum(axes), "metric": (weights * is_right).sum(axes)}
    p, shares = (np.where(is_ignored[..., None], 0, array) for array in (p, shares))
    dice = (2 * (p * shares).sum(axes) + task.dice_smooth) / ((p + shares).sum(axes) + task.dice_smooth)
    return {
        "losses": 1 - dice.mean(-1),
        "metric": (weights * is_right).sum(axes) / np.maximum(weights.sum(axes), 1),
    }


def _expect_binary(task: BinarySettings, outputs: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    counts = np.ones(labels.shape, bool) if task.ignore_label is None else labels != task.ignore_label
    is_right = (outputs > 0) == (labels > 0.5)
    labels = np.where(counts, labels, 0)
    yes, smooth = expit(outputs), labels * (1 - task.label_smoothing) + task.label_smoothing / 2
    if task.loss == "dice":
        overlap, total = (counts * yes * labels).sum(1), (counts * (yes + labels)).sum(1)
        losses = 1 - (2 * overlap + task.dice_smooth) / (total + task.dice_smooth)
        return {"losses": losses, "metric": (counts * is_right).sum(1) / np.maximum(counts.sum(1), 1)}
    entropies = -(smooth * log_expit(outputs) + (1 - smooth) * log_expit(-outputs))
    factors = (expit(outputs) * (1 - labels) + expit(-outputs) * labels) ** task.gamma
    if task.alpha is not None:
        factors = factors * (task.alpha * labels + (1 - task.alpha) * (1 - labels))
    losses = {
        "cross_entropy": entropies,
        "focal": entropies * factors,
        "hinge": np.maximum(0, 1 - (2 * labels - 1) * outputs),
    }[task.loss]
    has_one_label = len(labels[0]) == 1  # the batch weighs the example then
    if task.ignore_label is None and (task.class_weights is None or has_one_label):
        return {"losses": losses.mean(1), "metric": is_right.mean(1)}
    no_weight, yes_weight = task.class_weights or (1.0, 1.0)
    weights = counts * (no_weight + (yes_weight - no_weight) * labels)
    return {"losses": (weights * losses).sum(1), "metric": (weights * is_right).sum(1)}
