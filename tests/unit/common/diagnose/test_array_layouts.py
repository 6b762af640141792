"""Tests of arrays whose shapes do not show their layout."""

import numpy as np
import pytest

from common.diagnose.array_layouts import move_equal_axes
from common.diagnose.layer_match import LayerMatch

CUBE, OTHER = np.random.default_rng(0).normal(size=(2, 3, 4, 4, 4))


@pytest.mark.parametrize("is_first", [False, True])
def test_the_frameworks_decide_the_layout_of_a_cube(is_first: bool) -> None:
    layer = LayerMatch("batch norm", "", "a", "b", channels_first=(is_first, not is_first))
    expected = np.moveaxis(CUBE, 1, -1) if is_first else np.moveaxis(CUBE, -1, 1)
    np.testing.assert_array_equal(move_equal_axes(layer, CUBE, CUBE, OTHER), expected)


def test_equal_numbers_decide_the_layout_of_a_cube() -> None:
    """A layer of Keras may have its channels in the second axis, too."""
    layer = LayerMatch("batch norm", "", "a", "b", channels_first=(True, False))
    assert move_equal_axes(layer, CUBE, CUBE, CUBE * (1 + 1e-7)) is CUBE


@pytest.mark.parametrize("channels_first", [None, (True, True), (False, False)])
def test_one_framework_has_one_layout(channels_first: tuple[bool, bool] | None) -> None:
    layer = LayerMatch("batch norm", "", "a", "b", channels_first=channels_first)
    assert move_equal_axes(layer, CUBE, CUBE, OTHER) is CUBE


def test_shapes_that_show_the_layout_are_left() -> None:
    layer = LayerMatch("batch norm", "", "a", "b", channels_first=(True, False))
    a, b = CUBE[:, :2], OTHER[..., :2]
    assert move_equal_axes(layer, a, a, a.copy() * 2) is a
    assert move_equal_axes(layer, a, CUBE, b) is a
