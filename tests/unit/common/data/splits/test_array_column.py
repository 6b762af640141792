"""Ragged arrays, padded."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.data.splits.array_column import Column

lists = st.lists(st.lists(st.integers(-9, 9), max_size=30), min_size=1, max_size=12)


def ragged(examples: list[list[int]]) -> Column:
    flat: np.ndarray = np.array([value for example in examples for value in example], np.int32)
    return Column(flat, np.cumsum([0, *map(len, examples)]))


@pytest.mark.slow
@given(examples=lists, data=st.data(), padding=st.sampled_from([0, -1]))
def test_ragged_examples_are_padded_like_lists(examples: list[list[int]], data: st.DataObject, padding: int) -> None:
    batch = data.draw(st.lists(st.integers(0, len(examples) - 1), min_size=1, max_size=9))
    ids = data.draw(st.lists(st.sampled_from(batch), min_size=1, max_size=9))
    width = next(width for width in range(8, 100, 8) if width >= max(len(examples[i]) for i in batch))
    column = ragged(examples)
    gathered = column.gather(np.array(ids), np.array(batch), padding)
    assert gathered.tolist() == [examples[i] + [padding] * (width - len(examples[i])) for i in ids]
    assert column.lengths(np.array(ids)).tolist() == [len(examples[i]) for i in ids]
    assert (len(column), column.shape) == (len(examples), (None,))


def test_values_of_several_axes() -> None:
    column = Column(np.arange(10.0).reshape(5, 2), np.array([0, 3, 3, 5]))
    gathered = column.gather(np.array([2, 1]), np.array([0, 1, 2]))
    assert (gathered.shape, column.shape) == ((2, 8, 2), (None, 2))
    assert gathered[0, :3].tolist() == [[6, 7], [8, 9], [0, 0]]
    assert not gathered[1].any()


def test_unsigned_integers_are_widened() -> None:
    ids = np.arange(2)
    fixed, uneven = Column(np.array([250, 3], np.uint8)), Column(np.array([250], np.uint8), np.array([0, 0, 1]))
    assert fixed.gather(ids, ids).dtype == uneven.gather(ids, ids, -1).dtype == np.int32
    assert uneven.gather(ids, ids, -1)[:, :2].tolist() == [[-1, -1], [250, -1]]
