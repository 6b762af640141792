"""Weights of labels in the loss, and labels that are an input."""

import numpy as np
import pytest

from common.diagnose.recorded.example_order import ArrayPair
from common.diagnose.recorded.losses.label_forms import read_label_weights
from common.diagnose.recorded.losses.loss_formulas import find_formulas
from common.diagnose.recorded.losses.partial_labels import explain_input_as_label

LABELS = np.array([[0.0], [1.0], [1.0]], np.float32)
STREAM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("part", "weights"),
    [
        ({"pos_weight": np.array([4.0])}, [1, 4, 4]),
        ({"weight": np.array([4.0])}, [4, 4, 4]),
        ({"sample_weight": np.array([1.0, 4.0, 4.0])}, [1, 4, 4]),
    ],
)
def test_the_weights_of_binary_labels(part: dict[str, np.ndarray], weights: list[float]) -> None:
    read = read_label_weights(part, LABELS)
    assert read is not None
    assert read.ravel().tolist() == weights


def test_ignored_labels_have_the_weight_0() -> None:
    labels, weights = np.array([0, -100, 1, 255]), np.array([2.0, 4.0])
    read = read_label_weights({"weight": weights}, labels)
    assert read is not None
    assert read.tolist() == [2, 0, 4, 0]
    assert read_label_weights({"weight": np.ones(0)}, labels) is None


def test_the_weight_of_the_label_1_does_not_fit_other_labels() -> None:
    assert read_label_weights({"pos_weight": np.array([4.0])}, LABELS / 2) is None
    assert read_label_weights({"pos_weight": np.ones(5)}, LABELS) is None


def test_binary_cross_entropies_of_probabilities_and_of_logits() -> None:
    logits = STREAM.standard_normal((3, 1))
    probabilities = 1 / (1 + np.exp(-logits))
    loss = float(-(LABELS * np.log(probabilities) + (1 - LABELS) * np.log(1 - probabilities)).mean())
    twice = float((np.logaddexp(0, probabilities) - LABELS * probabilities).mean())
    name = "binary cross entropy"
    for outputs in (logits, probabilities):
        assert f"{name}, mean" in find_formulas(outputs, LABELS, loss, "float64")
        assert f"{name} of probabilities taken as logits, mean" in find_formulas(outputs, LABELS, twice, "float64")


def test_labels_that_are_the_other_side_s_input() -> None:
    noisy, clean = STREAM.standard_normal((2, 4, 5))
    arrays = [ArrayPair("0", noisy, noisy), ArrayPair("y", clean, noisy, is_label=True)]
    explanation = explain_input_as_label(arrays[1], arrays)
    assert explanation is not None
    assert explanation.confirmed
    assert "the labels of B are the input 0" in explanation.sentence
    assert explain_input_as_label(ArrayPair("y", clean, clean + 1, is_label=True), arrays) is None
    assert explain_input_as_label(arrays[0], arrays) is None


@pytest.mark.parametrize(
    ("outputs", "labels", "weights"),
    [
        (np.ones((0, 3)), np.ones((0, 3)), None),
        (np.ones((0, 3)), np.ones(0, np.int64), None),
        (np.ones((4, 0)), np.zeros(4, np.int64), None),
        (np.ones((4, 0)), np.ones((4, 0)), None),
        (np.full((4, 2), np.nan), np.zeros((4, 2)), None),
        (np.full((4, 2), 1e300), np.zeros((4, 2)), None),
        (np.ones((4, 3)), np.zeros(4, np.int64), np.ones(3)),
    ],
)
def test_damaged_arrays_have_no_formulas(outputs: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
    assert find_formulas(outputs, labels, 0.5, "float64", weights) == []
