"""Losses of the same outputs."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from common.diagnose.findings import Stage
from common.diagnose.observation import Observation
from common.diagnose.stages.loss import compare_losses

STREAM = np.random.default_rng(0)
LOGITS, CLASSES = STREAM.standard_normal((6, 3)), np.array([0, 2, 1, 1, 0, 2])
NUMBERS, TARGETS = STREAM.standard_normal((6, 1)), STREAM.standard_normal(6)
Loss = Callable[[np.ndarray, np.ndarray], np.ndarray]


def cross_entropy(outputs: np.ndarray, labels: np.ndarray, smoothing: float = 0.0) -> np.ndarray:
    target = np.eye(3)[labels] * (1 - smoothing) + smoothing / 3
    return np.asarray(-(target * log_softmax(outputs, 1)).sum(1))


def squared_error(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.asarray((outputs[:, 0] - labels) ** 2)


def compare(outputs: np.ndarray, labels: np.ndarray, losses_a: np.ndarray, losses_b: np.ndarray) -> Stage:
    a, b = (Observation([outputs], [losses], {}, {}, {}) for losses in (losses_a, losses_b))
    models = SimpleNamespace(a=a, a_perturbed=a, a_isolated=a, b=b)
    comparison: Any = SimpleNamespace(precision="float64", evaluation_mode=models, losses_of_b=losses_b, labels=labels)
    (stage,) = compare_losses(comparison)
    return stage


@pytest.mark.parametrize(
    ("cause", "loss_b"),
    [
        ("label_smoothing", lambda x, y: cross_entropy(x, y, 0.1)),
        ("double_softmax", lambda x, y: cross_entropy(softmax(x, 1), y)),
        ("scaled_loss", lambda x, y: cross_entropy(x, y) / 6),
        ("mean_instead_of_losses", lambda x, y: np.full(6, cross_entropy(x, y).mean())),
    ],
)
def test_a_loss_of_classes_is_named(cause: str, loss_b: Loss) -> None:
    stage = compare(LOGITS, CLASSES, cross_entropy(LOGITS, CLASSES), loss_b(LOGITS, CLASSES))
    assert [known.cause for known in stage.causes] == [cause]


@pytest.mark.parametrize(
    ("cause", "loss_b"),
    [
        ("broadcast_in_loss", lambda x, y: ((x - y) ** 2).mean(1)),
        ("broadcast_in_loss", lambda x, y: (x - y) ** 2),
        ("absolute_error", lambda x, y: np.abs(x[:, 0] - y)),
    ],
)
def test_a_loss_of_numbers_is_named(cause: str, loss_b: Loss) -> None:
    stage = compare(NUMBERS, TARGETS, squared_error(NUMBERS, TARGETS), loss_b(NUMBERS, TARGETS))
    assert [known.cause for known in stage.causes] == [cause]


def test_losses_whose_names_begin_alike_are_no_label_smoothing() -> None:
    errors = (LOGITS - LOGITS[::-1]) ** 2
    stage = compare(LOGITS, LOGITS[::-1], errors.mean(1), errors.sum(1))
    assert [known.cause for known in stage.causes] == ["squared_error_summed_over_outputs"]


def test_equal_losses_have_no_cause() -> None:
    losses = cross_entropy(LOGITS, CLASSES)
    assert compare(LOGITS, CLASSES, losses, losses).verdict == "equal"
