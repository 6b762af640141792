"""Tests of batches with two axes of examples that one script merges."""

import numpy as np
import pytest

from common.diagnose.recorded.merged_axes import find_merged_axes, merge_axes

STATES = np.arange(24.0).reshape(4, 3, 2)
ACTIONS = np.arange(12).reshape(4, 3)


def test_the_axes_of_all_arrays_are_merged_in_their_order() -> None:
    assert find_merged_axes({"states": STATES, "actions": ACTIONS}, 12) == (4, 3)
    assert np.array_equal(merge_axes(STATES, 12), STATES.reshape(12, 2))
    assert np.array_equal(merge_axes(ACTIONS, 12), np.arange(12))


@pytest.mark.parametrize(
    ("arrays", "count"),
    [
        ({"states": STATES, "actions": ACTIONS}, 4),
        ({"states": STATES, "actions": ACTIONS}, 24),
        ({"states": STATES, "weights": np.ones(4)}, 12),
        ({"states": STATES, "weights": np.ones(4)}, 1),
        ({"actions": ACTIONS}, 12),
    ],
)
def test_other_batches_have_one_axis_of_examples(arrays: dict[str, np.ndarray], count: int) -> None:
    assert find_merged_axes(arrays, count) is None


@pytest.mark.parametrize("array", [np.ones(12), np.ones((12, 1)), np.ones((4, 2))])
def test_arrays_of_another_count_stay(array: np.ndarray) -> None:
    assert merge_axes(array, 12) is array
