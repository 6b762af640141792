"""Tests of labels for which the KL divergence is the cross entropy."""

import numpy as np
import pytest

from common.diagnose.recorded.losses.loss_settings import _are_hard


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([np.eye(3)[[0, 2, 1]]], True),
        ([np.eye(3)[[0, 2, 1]] * [[1], [0], [1]]], True),  # a padded token has no class
        ([np.full((2, 3), 1 / 3)], False),
        ([np.array([[1, 1, 0]])], False),  # several classes
        ([np.array([0, 1, 1])], False),  # class numbers
        ([np.eye(3), np.full((2, 3), 1 / 3)], False),
        ([], False),
    ],
)
def test_labels_with_one_class_or_none_are_hard(labels: list[np.ndarray], expected: bool) -> None:
    assert _are_hard(labels) == expected
