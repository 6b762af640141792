"""Descriptions of models."""

import numpy as np

from common.map.description import list_probabilities


def test_outputs_that_add_up_to_1_are_probabilities() -> None:
    shares = np.array([[0.2, 0.3, 0.5], [0.1, 0.9, 0.0]])
    outputs = {
        "last axis": shares,
        "second axis": shares[:, :, None].repeat(4, 2),
        "logits": shares - 0.5,
        "sums of 2": 2 * shares,
        "negative": shares + np.array([0.6, 0, -0.6]),
        "one number": np.ones((2, 1)),
        "integers": np.array([[0, 1], [1, 0]]),
    }
    assert list_probabilities(outputs) == ["last axis", "second axis"]
