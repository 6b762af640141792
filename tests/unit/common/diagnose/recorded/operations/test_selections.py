"""Tests of what indices in Python's notation select."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from common.diagnose.recorded.operations.selections import (
    MOST_POSITIONS,
    are_other_selections,
    find_selection,
    join_selections,
)
from common.recording.index_notation import write_index

SHAPES = hnp.array_shapes(max_dims=4, max_side=5)


@given(SHAPES.flatmap(lambda shape: st.tuples(st.just(shape), hnp.basic_indices(shape, allow_newaxis=True))))
def test_selection_is_what_numpy_selects(example: tuple[tuple[int, ...], Any]) -> None:
    shape, index = example
    array = np.arange(np.prod(shape)).reshape(shape)
    selection = find_selection(write_index(index), shape)
    if index == ():  # the notation "[]" is none of Python's
        return
    assert selection is not None
    assert set(array[np.ix_(*map(list, selection.positions))].flat) == set(np.asarray(array[index]).flat)


@pytest.mark.parametrize(
    ("index", "other", "is_other"),
    [
        ("[:, -1]", "[:, 2]", False),
        ("[:, -1]", "[:, 0]", True),
        ("[0]", "[:1, ...]", False),  # axes that a number drops do not matter
        ("[..., 1:]", "[:, -2:]", False),
        ("[..., 1:]", "[:, :-1]", True),
        ("[:, [0,2]]", "[:, ::2]", False),
        ("[:, [0,2]]", "[:, [0,1]]", True),
        ("[:, None]", "[...]", False),
        ("[:, int64[4]]", "[:, 0]", False),  # a tensor, a mask, two lists: not comparable
        ("[[0,1], [0,1]]", "[0]", False),
        ("[True]", "[0]", False),
        ("[7]", "[0]", False),  # no index of this shape
        ("[::0]", "[0]", False),
        ("[0, 0, 0]", "[0]", False),
        ("text", "[0]", False),
    ],
)
def test_only_indices_that_surely_differ_are_others(index: str, other: str, is_other: bool) -> None:
    assert are_other_selections(find_selection(index, [4, 3]), find_selection(other, [4, 3])) is is_other


@pytest.mark.parametrize(("index", "is_other"), [("[:, 1]", False), ("[:, 2]", True), ("[:, :, 1]", True)])
def test_axes_may_have_another_order(index: str, is_other: bool) -> None:
    assert (
        are_other_selections(find_selection("[..., 1]", [2, 5, 4, 3]), find_selection(index, [2, 3, 5, 4])) is is_other
    )


def test_tensors_of_other_axes_are_not_compared() -> None:
    assert not are_other_selections(find_selection("[:, :4]", [2, 12]), find_selection("[:, 0]", [2, 3, 4]))


@pytest.mark.parametrize(
    ("index", "is_reordering"),
    [
        ("[:, ::-1]", True),
        ("[:, [2,0,1]]", True),
        ("[:]", False),
        ("[:, 1:]", False),
        ("[[0,1,1,3]]", False),
        ("[1]", False),
    ],
)
def test_reordering_selects_all_elements(index: str, is_reordering: bool) -> None:
    selection = find_selection(index, [4, 3])
    assert selection is not None
    assert selection.is_reordering is is_reordering


def test_selections_of_a_loop_are_joined() -> None:
    assert _join("[:, 0]", "[:, 2]", "[:1, -1]") == [{0, 1, 2, 3}, {0, 2}]
    assert _join("[:, 0]", "[:, 1]") == _join("[:, :2]")
    assert _join("[:, 0]", "[:, int64[]]") is None  # a tensor selects one of them
    assert _join() is None
    large = find_selection("[:]", [MOST_POSITIONS])
    assert join_selections([large]) is not None
    assert join_selections([large, large]) is None


def _join(*indices: str) -> list[set[int]] | None:
    return join_selections([find_selection(index, [4, 3]) for index in indices])
