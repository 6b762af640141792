"""Weights of examples that follow from their labels."""

import numpy as np
import pytest

from common.diagnose.recorded.losses.class_weights import find_class_weights
from common.diagnose.recorded.losses.loss_formulas import name_difference

LABELS = np.array([[1], [0], [0], [1]], np.uint8)
WEIGHTS = np.array([4.0, 1.0, 1.0, 4.0], np.float32)


def test_the_weights_of_other_labels_follow_from_the_rule() -> None:
    rules = find_class_weights({"0": np.arange(8.0).reshape(4, 2), "1": LABELS, "2": WEIGHTS}, {})
    assert rules.keys() == {"2"}
    computed = rules["2"].compute(np.array([[0], [1]], np.uint8))
    assert computed is not None
    assert computed.dtype == np.float32
    assert computed.tolist() == [1.0, 4.0]


def test_a_class_without_a_known_weight_gets_none() -> None:
    assert find_class_weights({"1": LABELS, "2": WEIGHTS}, {})["2"].compute(np.array([2])) is None


def test_weights_that_do_not_follow_from_the_labels_have_no_rule() -> None:
    assert not find_class_weights({"1": LABELS, "2": np.array([4.0, 1.0, 2.0, 4.0])}, {})
    assert not find_class_weights({"1": LABELS, "2": np.ones(4)}, {})
    assert not find_class_weights({"1": np.arange(4), "2": np.array([0.5, 1.5, 2.5, 3.5])}, {})  # each class once
    assert not find_class_weights({"1": LABELS, "2": -WEIGHTS}, {})
    assert not find_class_weights({"1": LABELS, "2": np.array([4.0, np.nan, 1.0, 4.0])}, {})


@pytest.mark.parametrize("reduction", ["mean weighted by class", "mean of losses times weights"])
def test_weights_that_only_one_loss_has_are_the_cause(reduction: str) -> None:
    assert name_difference(f"cross entropy, {reduction}", "cross entropy, mean") == "class_weights"
    assert name_difference("cross entropy, sum", "cross entropy, mean") == "loss_reduction"


ONE_HOT = np.eye(2, dtype=np.float32)[LABELS.ravel()]


def test_one_hot_labels_have_the_weights_of_their_classes() -> None:
    rule = find_class_weights({"1": ONE_HOT, "2": WEIGHTS}, {})["2"]
    assert (rule.source, rule.table) == ("1", {0.0: 1.0, 1.0: 4.0})
    computed = rule.compute(np.eye(2, dtype=np.float32)[[0, 1, 1]])
    assert computed is not None
    assert computed.tolist() == [1.0, 4.0, 4.0]


def test_rows_that_are_not_one_hot_are_no_labels() -> None:
    assert not find_class_weights({"1": np.stack([WEIGHTS, WEIGHTS], 1), "2": WEIGHTS}, {})
    assert find_class_weights({"1": ONE_HOT, "2": WEIGHTS}, {})["2"].compute(np.full((3, 2), 0.5)) is None
    assert find_class_weights({"1": LABELS, "2": WEIGHTS}, {})["2"].compute(np.array([0.5, 1.0])) is None


def test_numbers_with_fractions_are_no_labels() -> None:
    assert "2" not in find_class_weights({"1": np.array([0.5, 0.25, 0.25, 0.5]), "2": WEIGHTS}, {})


def test_arrays_of_another_number_of_examples_are_no_labels() -> None:
    assert not find_class_weights({"1": np.eye(2)[[0, 1]], "2": WEIGHTS}, {})


def test_declared_weights_count_for_classes_that_are_not_in_the_batch() -> None:
    rule = find_class_weights({"1": LABELS, "2": WEIGHTS}, {0.0: 1.0, 1.0: 4.0, 2.0: 9.0})["2"]
    computed = rule.compute(np.array([2, 0]))
    assert computed is not None
    assert computed.tolist() == [9.0, 1.0]


@pytest.mark.parametrize("known", [{0.0: 1.0, 1.0: 5.0, 2.0: 9.0}, {0.0: 1.0, 2.0: 9.0}])
def test_declared_weights_of_other_numbers_do_not_count(known: dict[float, float]) -> None:
    """They are not those of the batch: the array has other weights than these."""
    rule = find_class_weights({"1": LABELS, "2": WEIGHTS}, known)["2"]
    assert rule.table == {0.0: 1.0, 1.0: 4.0}
    assert rule.compute(np.array([2])) is None
