"""Reference implementations of the losses and metrics of tasks in NumPy, from their definitions."""

from typing import Any

import numpy as np

from common.config.tasks import (
    BinarySettings,
    ClassificationSettings,
    LanguageModelSettings,
    RegressionSettings,
    TaskSettings,
)

stream = np.random.default_rng(0)
LOGITS, NUMBERS = stream.standard_normal((5, 4)), stream.standard_normal((5, 3))
CLASSES = np.array([0, 3, 1, 1, 2], np.int32)
SHARES = stream.dirichlet(np.ones(4), 5).astype(np.float32)
TOKENS = np.array([[1, 0, -1], [2, 3, 1], [-1, -1, -1], [0, 0, 2], [3, -1, 1]], np.int32)
CASES: dict[str, tuple[TaskSettings, np.ndarray, np.ndarray]] = {  # the task, the outputs and the labels
    "classes": (ClassificationSettings("classification", 0.0, None), LOGITS, CLASSES),
    "smooth classes": (ClassificationSettings("classification", 0.1, None), LOGITS, CLASSES),
    "shares": (ClassificationSettings("classification", 0.0, None), LOGITS, SHARES),
    "smooth shares": (ClassificationSettings("classification", 0.2, None), LOGITS, SHARES),
    "yes or no": (BinarySettings("binary", 0.0, None), LOGITS[:, :1], (CLASSES > 0).astype(np.int32)),
    "smooth yes or no": (BinarySettings("binary", 0.1, None), LOGITS[:, 0], (CLASSES > 0).astype(np.int32)),
    "several yes or no": (BinarySettings("binary", 0.0, None), LOGITS, (SHARES > 0.2).astype(np.float32)),
    "mse": (RegressionSettings("regression", "mse", 1.0), NUMBERS, LOGITS[:, :3].astype(np.float32)),
    "mae": (RegressionSettings("regression", "mae", 1.0), NUMBERS, LOGITS[:, :3].astype(np.float32)),
    "huber": (RegressionSettings("regression", "huber", 0.7), NUMBERS[:, :1], LOGITS[:, 0].astype(np.float32)),
    "tokens": (LanguageModelSettings("language_model"), stream.standard_normal((5, 3, 4)), TOKENS),
}


def expected(task: TaskSettings, outputs: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Return the loss and the metric of each example."""
    if isinstance(task, ClassificationSettings):
        shares: Any = np.eye(4)[labels] if labels.ndim == 1 else labels
        smooth = shares * (1 - task.label_smoothing) + task.label_smoothing / 4
        return {"losses": -(smooth * _log_softmax(outputs)).sum(1), "metric": outputs.argmax(1) == shares.argmax(1)}
    if isinstance(task, LanguageModelSettings):
        picked = np.take_along_axis(_log_softmax(outputs), np.maximum(labels, 0)[..., None], -1)[..., 0]
        return {"losses": -(picked * (labels >= 0)).sum(1), "metric": (outputs.argmax(-1) == labels).sum(1)}
    outputs, labels = outputs.reshape(5, -1), labels.reshape(5, -1).astype(float)
    if isinstance(task, BinarySettings):
        smooth = labels * (1 - task.label_smoothing) + task.label_smoothing / 2
        yes = 1 / (1 + np.exp(-outputs))
        losses = -(smooth * np.log(yes) + (1 - smooth) * np.log(1 - yes)).mean(1)
        return {"losses": losses, "metric": ((outputs > 0) == (labels > 0.5)).mean(1)}
    assert isinstance(task, RegressionSettings)
    off = np.abs(outputs - labels)
    huber = np.where(off < task.delta, off**2 / 2, task.delta * (off - task.delta / 2))
    return {"losses": {"mse": off**2, "mae": off, "huber": huber}[task.loss].mean(1), "metric": off.mean(1)}


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))
