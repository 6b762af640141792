"""Tests of batches in which the first axis of some arrays does not count the examples."""

import numpy as np
import pytest

from common.diagnose.recorded.example_axis import (
    Shape,
    infer_count,
    is_one_example,
    list_surplus_numbering,
    numbers_examples,
    swap_examples,
)

TABLES, EXAMPLES = 4, 16
OFFSETS = np.tile(np.arange(EXAMPLES), (TABLES, 1))
INDICES = np.random.default_rng(0).integers(0, 9, (TABLES, EXAMPLES))


@pytest.mark.parametrize(
    ("inputs", "others", "expected"),
    [
        ([(8, 10)], [(8, 5)], 8),
        ([(4, 16), (4, 16), (16, 6)], [(16, 1), (16, 1)], 16),  # indices of embedding tables, and numbers
        ([(14, 8)], [(8, 1), (8,)], 8),  # tokens, which the model transposes
        ([(26, 16), (26, 16), (16, 6), (16, 1)], [], 16),  # the second axes decide
        ([(8, 10), (10, 10)], [(8, 10, 30), (80,)], 8),  # a causal mask, and flat labels
        ([(), (3,)], [], 3),
        ([()], [], None),
    ],
)
def test_number_of_examples(inputs: list[Shape], others: list[Shape], expected: int | None) -> None:
    assert infer_count(inputs, others) == expected


def test_integers_whose_examples_are_second_are_swapped() -> None:
    assert np.array_equal(swap_examples(INDICES, EXAMPLES), INDICES.T)
    for other in (INDICES.T, INDICES[:1], INDICES.astype(np.float32), np.zeros((EXAMPLES, EXAMPLES), np.int64)):
        assert swap_examples(other, EXAMPLES) is other


def test_offsets_number_the_examples() -> None:
    assert numbers_examples(OFFSETS.T)
    assert numbers_examples(np.arange(3))
    for other in (OFFSETS, INDICES.T, OFFSETS.T.astype(np.float32), np.zeros(1, np.int64)):
        assert not numbers_examples(other)


def test_only_surplus_numbering_is_left_out() -> None:
    """A column of user ids may count up in a small data set."""
    arrays = {"offsets": OFFSETS.T, "indices": INDICES.T}
    assert list_surplus_numbering(arrays, {"ids": INDICES.T}) == ["offsets"]
    assert list_surplus_numbering(arrays, {"users": OFFSETS.T, "items": INDICES.T}) == []


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        ([(4,)], [(2,), (1,)], True),  # the state of an agent; probabilities and a value
        ([(4,)], [(4,)], False),
        ([(4,)], [(4, 2)], False),  # token ids and their embeddings
        ([(4,)], [()], False),
        ([(4, 3)], [(4,)], False),
        ([], [(2,)], False),
        ([(4,)], [], False),
    ],
)
def test_one_example_has_no_axis_of_examples(inputs: list[Shape], outputs: list[Shape], expected: bool) -> None:
    assert is_one_example(inputs, outputs) == expected
