"""Tests of labels as numbers of classes and as one-hot rows, without a square matrix of the classes."""

import numpy as np
import pytest

from common.diagnose.recorded.example_order import _rank_label, convert_to_layout
from common.diagnose.recorded.loss_formulas import list_formulas


def test_labels_match_only_their_one_hot_form(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.array([2, 0, 1])
    one_hot = np.eye(4)[labels]
    monkeypatch.setattr(np, "eye", lambda *_: pytest.fail("builds a square matrix of the columns"))
    assert _rank_label(one_hot, labels) == 0
    assert _rank_label(one_hot * 0.5, labels) == 2
    assert _rank_label(one_hot, labels[::-1]) == 2


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
