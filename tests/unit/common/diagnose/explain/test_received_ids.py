"""Tests of the ids that a layer receives."""

import numpy as np
import pytest

from common.diagnose.explain.received_ids import explain_ids

TARGET = np.arange(12).reshape(4, 3) % 7


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (np.zeros((4, 1), int), TARGET[:, :1], "0 for all examples in A and the batch's target[:, 0] in B"),
        (TARGET, TARGET + 1, "the batch's target in A and others in B"),
        (TARGET.astype(np.float32), TARGET + 1, "the batch's target in A and others in B"),
        (np.zeros((4, 1)), TARGET[:, 0], "0 for all examples in A and the batch's target[:, 0] in B"),
        (TARGET[:, 1:], TARGET[:, :2], "the batch's target[:, 1:3] in A and the batch's target[:, 0:2] in B"),
    ],
)
def test_other_ids_are_described(a: np.ndarray, b: np.ndarray, words: str) -> None:
    explanation = explain_ids("embedding", a, b, {"x": np.zeros((4, 2)), "target": TARGET})
    assert explanation is not None
    assert explanation.sentence == f"embedding receives other ids: {words}"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (TARGET, TARGET.astype(np.int32)),
        (TARGET, TARGET[..., None].astype(np.float32)),
        (TARGET, TARGET[:, 1:]),
        (TARGET, TARGET.reshape(3, 4) + 1),
        (TARGET, np.where(TARGET == 2, np.nan, TARGET)),
        (np.array(3), np.array(4)),
        (TARGET[:0], TARGET[:0] + 1),
        (None, TARGET),
        (TARGET, TARGET / 2),
    ],
)
def test_equal_ids_and_numbers_explain_nothing(a: np.ndarray | None, b: np.ndarray) -> None:
    assert explain_ids("embedding", a, b, {}) is None
