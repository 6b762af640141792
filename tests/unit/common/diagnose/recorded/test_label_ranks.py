"""Test that labels are ranked without building a one-hot matrix."""

import numpy as np
import pytest

from common.diagnose.recorded.example_order import _rank_label


def test_labels_match_only_their_one_hot_form(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.array([2, 0, 1])
    one_hot = np.eye(4)[labels]
    monkeypatch.setattr(np, "eye", lambda *_: pytest.fail("builds a square matrix of the columns"))
    assert _rank_label(one_hot, labels) == 0
    assert _rank_label(one_hot * 0.5, labels) == 2
    assert _rank_label(one_hot, labels[::-1]) == 2
