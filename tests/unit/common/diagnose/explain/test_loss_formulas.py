"""Tests of the formulas of losses, and of what distinguishes the losses of two functions."""

import numpy as np
import pytest
from scipy.special import expit, log_softmax

from common.diagnose.explain import loss_formulas
from common.diagnose.explain.loss_formulas import compute_formulas, explain_losses

STREAM = np.random.default_rng(0)
LOGITS, CLASSES = STREAM.standard_normal((8, 5)), STREAM.integers(0, 5, 8)
OUTPUTS, TARGETS = 2 * STREAM.standard_normal((2, 8, 1))
LOG_PROBABILITIES = log_softmax(LOGITS, 1)
CROSS_ENTROPIES = -LOG_PROBABILITIES[np.arange(8), CLASSES]
SMOOTHED = 0.9 * CROSS_ENTROPIES - 0.1 * LOG_PROBABILITIES.mean(1)
ERRORS = np.abs(OUTPUTS - TARGETS)[:, 0]
PAIRS = ((OUTPUTS - TARGETS.T) ** 2).mean(1)
CASES = {  # outputs, labels, the losses of A and of B, and the cause
    "label smoothing": (LOGITS, CLASSES, CROSS_ENTROPIES, SMOOTHED, "label_smoothing"),
    "absolute error": (OUTPUTS, TARGETS, ERRORS**2, ERRORS, "absolute_error"),
    "huber loss": (OUTPUTS, TARGETS, ERRORS, np.where(ERRORS < 1, ERRORS**2 / 2, ERRORS - 0.5), "huber_loss"),
    "broadcast": (OUTPUTS, TARGETS, ERRORS**2, PAIRS, "broadcast_in_loss"),
    "a factor": (LOGITS, CLASSES, STREAM.random(8), None, "scaled_loss"),
    "the mean": (LOGITS, CLASSES, CROSS_ENTROPIES, np.full(8, CROSS_ENTROPIES.mean()), "mean_instead_of_losses"),
    "unknown": (LOGITS, CLASSES, CROSS_ENTROPIES, STREAM.random(8), "loss_function"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_formulas_of_both_losses_are_named(name: str) -> None:
    outputs, labels, a, b, cause = CASES[name]
    assert explain_losses(outputs, labels, a, 3 * a if b is None else b).cause == cause


def test_the_formulas_of_a_large_batch_are_those_of_the_examples_that_differ_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = []

    def count(logits: np.ndarray, axis: int) -> np.ndarray:
        sizes.append(logits.size)
        return np.asarray(log_softmax(logits, axis))

    monkeypatch.setattr(loss_formulas, "log_softmax", count)
    monkeypatch.setattr(loss_formulas, "MOST_ELEMENTS", LOGITS.size // 2)
    assert explain_losses(LOGITS, CLASSES, CROSS_ENTROPIES, SMOOTHED).cause == "label_smoothing"
    assert sum(sizes) == LOGITS.size, "two calls for half of the examples"


def test_a_large_batch_is_not_paired_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every output against every target would be gigabytes."""
    assert any("broadcast" in name for name in compute_formulas(OUTPUTS, TARGETS))
    monkeypatch.setattr(loss_formulas, "MOST_PAIRS", 63)
    assert not any("broadcast" in name for name in compute_formulas(OUTPUTS, TARGETS))


@pytest.mark.parametrize("are_logits", [True, False])
def test_logits_from_0_to_1_are_no_probabilities_if_the_model_returns_logits(are_logits: bool) -> None:
    logits, targets = expit(OUTPUTS), (TARGETS > 0).astype(float)
    formulas = compute_formulas(logits, targets, are_logits)
    probabilities = expit(logits) if are_logits else logits
    expected = -np.where(targets > 0, np.log(probabilities), np.log(1 - probabilities))[:, 0]
    np.testing.assert_allclose(formulas["binary cross entropy"], expected)
    assert ("binary cross entropy of logits taken as probabilities" in formulas) == are_logits


def test_a_binary_loss_of_probabilities_that_receives_logits_is_named() -> None:
    targets = (TARGETS > 0).astype(float)
    clipped = np.clip(OUTPUTS, 1e-7, 1 - 1e-7)
    a = -np.where(targets > 0, np.log(expit(OUTPUTS)), np.log(expit(-OUTPUTS)))[:, 0]
    b = -np.where(targets > 0, np.log(clipped), np.log(1 - clipped))[:, 0]
    sentence = explain_losses(OUTPUTS, targets, a, b).sentence
    assert sentence.endswith("binary cross entropy of logits taken as probabilities"), sentence


TERMS = np.log1p(np.maximum(OUTPUTS, 1e-7)) - np.log1p(np.abs(TARGETS))
KERAS_CASES = {  # the targets and the losses
    "absolute percentage error": (TARGETS, 100 * ERRORS / np.abs(TARGETS[:, 0])),
    "absolute percentage error of the output": (TARGETS, 100 * ERRORS / np.abs(OUTPUTS[:, 0])),
    "log cosh error": (TARGETS, np.log(np.cosh(ERRORS))),
    "squared logarithmic error": (np.abs(TARGETS), TERMS[:, 0] ** 2),
}


@pytest.mark.parametrize("name", KERAS_CASES)
def test_a_loss_of_regressions_in_keras_is_named(name: str) -> None:
    """The script of PyTorch may compute it with the output and the target exchanged."""
    targets, losses = KERAS_CASES[name]
    squared = ((OUTPUTS - targets) ** 2)[:, 0]
    sentence = explain_losses(OUTPUTS, targets, squared, losses).sentence
    assert sentence == f"the loss of A is squared error, that of B {name}"


def test_targets_below_zero_have_no_logarithmic_error() -> None:
    assert TARGETS.min() < 0
    assert "squared logarithmic error" not in compute_formulas(OUTPUTS, TARGETS)
