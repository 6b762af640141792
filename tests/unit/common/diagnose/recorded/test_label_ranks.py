"""Tests of labels as numbers of classes and as one-hot rows, without a square matrix of the classes."""

import numpy as np
import pytest

from common.diagnose.recorded.array_layouts import convert_to_layout
from common.diagnose.recorded.example_order import ALIKE, EQUAL_VALUES, _fit_label, pair_arrays
from common.diagnose.recorded.losses.loss_formulas import list_formulas


def test_labels_match_only_their_one_hot_form(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.array([2, 0, 1])
    one_hot = np.eye(4)[labels]
    monkeypatch.setattr(np, "eye", lambda *_: pytest.fail("builds a square matrix of the columns"))
    assert _fit_label(one_hot, labels) == EQUAL_VALUES
    assert _fit_label(one_hot * 0.5, labels) == ALIKE
    assert _fit_label(one_hot, labels[::-1]) == ALIKE


def test_one_hot_labels_and_losses_need_no_square_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.array([2, 0, -1])
    one_hot = np.eye(4)[[2, 0, 0]]
    monkeypatch.setattr(np, "eye", lambda *_: pytest.fail("builds a square matrix of the columns"))
    converted = convert_to_layout(labels, one_hot)
    assert np.array_equal(converted[:2], one_hot[:2])
    assert not converted[2].any()  # an ignored label is no class
    assert dict(list_formulas(np.zeros((3, 4)), labels))["cross entropy, mean"] == pytest.approx(np.log(4))


def test_mixed_labels_are_no_classes() -> None:
    labels, mixed = np.array([1, 0]), np.array([[0.3, 0.7, 0.0], [1.0, 0.0, 0.0]])
    smoothed = np.array([[0.1, 0.8, 0.1], [0.8, 0.1, 0.1]])
    assert np.array_equal(convert_to_layout(smoothed, labels), labels)
    assert np.array_equal(convert_to_layout(mixed, labels), mixed)

    halves = np.array([[0.4, 0.6], [0.7, 0.3], [1.0, 0.0]])
    assert np.array_equal(convert_to_layout(halves, np.array([1, 0, 0])), halves)
    assert convert_to_layout(np.zeros((2, 0)), labels).shape == (2, 0)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
@pytest.mark.parametrize("noise", [1e-7, 1e-4])
def test_outputs_in_another_order_are_paired_by_values_and_sizes(noise: float, order: list[int]) -> None:
    price, tax, kind = np.array([[1.0], [2.0]]), np.array([[3.0], [4.0]]), np.ones((2, 4))
    pairs, missing_in_b, missing_in_a = pair_arrays(
        {"kind": kind, "price": price, "tax": tax}, {"0": tax[order], "1": price[order] + noise, "2": kind * 2}
    )
    assert [(pair.name, pair.name_b) for pair in pairs] == [("kind", "2"), ("price", "1"), ("tax", "0")]
    assert missing_in_a == missing_in_b == []


def test_outputs_without_elements_are_paired() -> None:
    (pair,), *_ = pair_arrays({"boxes": np.zeros((0, 4))}, {"1": np.zeros((0, 4))})
    assert (pair.name, pair.name_b) == ("boxes", "1")
