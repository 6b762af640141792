"""Tests of the notation of indices."""

import numpy as np
import pytest

from common.recording.index_notation import write_axis_index, write_flip, write_index, write_length


@pytest.mark.parametrize(
    ("index", "text"),
    [
        (np.s_[0], "[0]"),
        (np.s_[:, -1], "[:, -1]"),
        (np.s_[..., :4], "[..., :4]"),
        (np.s_[None, 1:], "[None, 1:]"),
        (np.s_[::2, :-1:3], "[::2, :-1:3]"),
        (np.s_[True], "[True]"),
        (np.s_[[0, 2]], "[[0,2]]"),
        (np.s_[:], "[:]"),
    ],
)
def test_notation_is_that_of_python(index: object, text: str) -> None:
    assert write_index(index) == text


def test_tensors_have_types_and_shapes() -> None:
    mask = np.zeros([3, 4], bool)
    assert write_index((slice(None), np.arange(2), mask)) == "[:, int64[2], bool[3,4]]"
    assert write_index((np.int64(2), object())) == "[2, object[]]"


@pytest.mark.parametrize(("axis", "text"), [(0, "[2]"), (-1, "[:, :, 2]"), (1, "[:, 2]")])
def test_index_of_one_axis(axis: int, text: str) -> None:
    assert write_axis_index(2, axis, rank=3) == text


@pytest.mark.parametrize(("start", "length"), [(0, 3), (1, 2), (-2, 2), (-1, 1), (2, 0), (0, 0)])
def test_length_becomes_a_slice(start: int, length: int) -> None:
    assert np.arange(3)[write_length(start, length, 3)].tolist() == [*range(start % 3, start % 3 + length)]


@pytest.mark.parametrize(
    ("axes", "text"), [([0], "[::-1]"), ([-1, 0], "[::-1, :, ::-1]"), ([-2], "[:, ::-1]"), ([], "[...]")]
)
def test_flip_is_an_index(axes: list[int], text: str) -> None:
    assert write_flip(axes, rank=3) == text
