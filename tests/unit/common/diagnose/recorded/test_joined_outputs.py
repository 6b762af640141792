"""Tests of outputs that one model returns as one array, and the other as several."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.diagnose.recorded.joined_outputs import join_outputs


@given(sizes=st.lists(st.integers(1, 4), min_size=2, max_size=4), axis=st.integers(1, 2), seed=st.integers(0, 9))
@pytest.mark.parametrize("is_divided_in_a", [True, False])
def test_parts_are_joined_in_the_order_of_the_whole(
    is_divided_in_a: bool, sizes: list[int], axis: int, seed: int
) -> None:
    stream = np.random.default_rng(seed)
    whole = stream.standard_normal((3, sum(sizes), 2) if axis == 1 else (3, 2, sum(sizes)))
    parts = np.split(whole, np.cumsum(sizes)[:-1], axis)
    divided = {str(index): parts[index] for index in stream.permutation(len(parts))}
    sides = join_outputs(divided, {"0": whole}) if is_divided_in_a else join_outputs({"0": whole}, divided)
    for side in sides:
        np.testing.assert_array_equal(side["0"], whole)


@pytest.mark.parametrize(
    "parts",
    [
        {"0": np.zeros((3, 4)), "1": np.zeros((3, 3))},  # they are larger
        {"0": np.zeros((3, 4)), "1": np.zeros((3, 1, 2))},  # they have other numbers of axes
        {str(index): np.zeros((3, 1)) for index in range(6)},  # too many orders
    ],
)
def test_parts_that_do_not_fit_stay(parts: dict[str, np.ndarray]) -> None:
    whole = {"0": np.zeros((3, 6))}
    assert join_outputs(whole, parts) == (whole, parts)
    assert join_outputs(parts, whole) == (parts, whole)


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("moves_channels", [False, True])
def test_parts_are_stacked_in_the_order_and_the_layout_of_the_whole(axis: int, moves_channels: bool) -> None:
    parts = np.random.default_rng(0).standard_normal((2, 3, 4, 4, 5))
    whole = np.stack([np.moveaxis(part, -1, 1) for part in parts] if moves_channels else [*parts], axis)
    sides = join_outputs({"0": whole}, {"0": parts[1], "1": parts[0]})
    np.testing.assert_array_equal(sides[1]["0"], whole)
