"""Tests of the order of the features of a linear layer whose input has axes with channels."""

import pytest

from common.map.pair_variables import _moves_channels


@pytest.mark.parametrize(
    ("torch", "keras", "convolved_axes", "expected"),
    [
        ((8, 1, 5), (5, 8), {1}, True),
        ((8, 5), (1, 5, 8), {2}, True),
        ((8, 1, 8), (8, 8), {1}, True),
        ((8, 1, 8), (8, 8), {2}, False),
        ((8, 1, 5), (8, 5), {1}, False),
        ((8, 1, 5), None, {1}, False),
    ],
)
def test_windows_of_one_row_may_have_one_axis_less(
    torch: tuple[int, ...], keras: tuple[int, ...] | None, convolved_axes: set[int], expected: bool
) -> None:
    """A convolution along a sequence may be one over images of one row in the other framework."""
    assert _moves_channels(torch, keras, convolved_axes) == expected
