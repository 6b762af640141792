"""Tests of rows of padding, in which arrays of layers may differ."""

import numpy as np
import pytest

from common.diagnose.recorded.padded_rows import hide_padding

IDS = np.array([[5, 7, 0, 0], [3, 0, 4, 2], [6, 1, 9, 0]])
PADDING = np.array([[0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1]], bool)
STREAM = np.random.default_rng(1)


@pytest.mark.parametrize("form", ["tokens", "rows", "heads"])
@pytest.mark.parametrize("is_left", [False, True])
def test_differences_in_rows_of_padding_are_hidden(form: str, is_left: bool) -> None:
    a = STREAM.normal(size=(3, 4, 5))
    ids, padding = (np.flip(x, 1) if is_left else x for x in (IDS, PADDING))
    b = a + padding[..., None]
    if form == "rows":
        a, b = a.reshape(12, 5), b.reshape(12, 5)
    elif form == "heads":
        a, b = (np.stack([x, x * 2], 1) for x in (a, b))
    np.testing.assert_array_equal(hide_padding(a, b, [IDS.T, ids], np.allclose), a)


@pytest.mark.parametrize("place", [(1, 1), (0, 1)])
def test_differences_in_other_rows_stay(place: tuple[int, int]) -> None:
    """A zero between tokens is no padding."""
    a = STREAM.normal(size=(3, 4, 5))
    b = a + PADDING[..., None]
    b[place] += 1
    assert hide_padding(a, b, [IDS], np.allclose) is b
