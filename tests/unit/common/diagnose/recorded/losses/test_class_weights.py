"""Weights of examples that follow from their labels."""

import numpy as np
import pytest

from common.diagnose.recorded.losses.class_weights import find_class_weights
from common.diagnose.recorded.losses.loss_formulas import name_difference

LABELS = np.array([[1], [0], [0], [1]], np.uint8)
WEIGHTS = np.array([4.0, 1.0, 1.0, 4.0], np.float32)


def test_the_weights_of_other_labels_follow_from_the_rule() -> None:
    rules = find_class_weights({"0": np.arange(8.0).reshape(4, 2), "1": LABELS, "2": WEIGHTS})
    assert rules.keys() == {"2"}
    computed = rules["2"].compute(np.array([[0], [1]], np.uint8))
    assert computed is not None
    assert computed.dtype == np.float32
    assert computed.tolist() == [1.0, 4.0]


def test_a_class_without_a_known_weight_gets_none() -> None:
    assert find_class_weights({"1": LABELS, "2": WEIGHTS})["2"].compute(np.array([2])) is None


def test_weights_that_do_not_follow_from_the_labels_have_no_rule() -> None:
    assert not find_class_weights({"1": LABELS, "2": np.array([4.0, 1.0, 2.0, 4.0])})
    assert not find_class_weights({"1": LABELS, "2": np.ones(4)})
    assert not find_class_weights({"1": np.arange(4), "2": np.array([0.5, 1.5, 2.5, 3.5])})  # each class once
    assert not find_class_weights({"1": LABELS, "2": -WEIGHTS})
    assert not find_class_weights({"1": LABELS, "2": np.array([4.0, np.nan, 1.0, 4.0])})


@pytest.mark.parametrize("reduction", ["mean weighted by class", "mean of losses times weights"])
def test_weights_that_only_one_loss_has_are_the_cause(reduction: str) -> None:
    assert name_difference(f"cross entropy, {reduction}", "cross entropy, mean") == "class_weights"
    assert name_difference("cross entropy, sum", "cross entropy, mean") == "loss_reduction"
