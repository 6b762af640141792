"""Tests of numbers of tokens that only one of two scripts has in its batches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.diagnose.recorded.derived_arrays import find_derived
from common.diagnose.recorded.token_lengths import find_token_lengths, sort_by_length

TOKENS = 7


def pad(lengths: np.ndarray, padding: int, features: tuple[int, ...] = ()) -> np.ndarray:
    """Return sequences [n, TOKENS, *features] of numbers other than the padding, which fills the rest of each."""
    numbers = np.random.default_rng(0).integers(1, 90, (len(lengths), TOKENS, *features))
    is_token = np.arange(TOKENS) < lengths[:, None]
    return np.where(is_token.reshape(*is_token.shape, *(1 for _ in features)), numbers, padding)


LENGTHS = np.array([7, 3, 5])


@given(st.lists(st.integers(0, TOKENS), min_size=2).filter(lambda x: len({*x}) > 1), st.sampled_from([0, 99]))
def test_lengths_are_counted_without_the_padding(lengths: list[int], padding: int) -> None:
    for features in ((), (2,)):
        arrays = {"tokens": pad(np.array(lengths), padding, features), "lengths": np.array(lengths)}
        rule = find_token_lengths(arrays)["lengths"]
        assert rule.source == "tokens"
        assert rule.compute(pad(LENGTHS, padding, features)).tolist() == LENGTHS.tolist()


def test_other_numbers_are_no_lengths() -> None:
    sequences = pad(LENGTHS, 0)
    for numbers in (LENGTHS - 1, np.array([7, 7, 7]), LENGTHS.astype(np.float32), LENGTHS[:, None], LENGTHS + TOKENS):
        assert find_token_lengths({"tokens": sequences, "lengths": numbers}) == {}


def test_a_script_with_lengths_gets_those_of_the_record() -> None:
    batch = {"0": pad(LENGTHS, 0), "1": LENGTHS, "2": np.array([0.0, 1, 0])}
    recorded = {"input 0": pad(LENGTHS[::-1], 0), "label y_true": np.array([1, 0, 1])}
    rules, arrays = find_derived(batch, recorded, {})
    assert [*arrays] == ["input 0", "label y_true"]
    computed = rules["1"].compute(recorded["input 0"])
    assert computed is not None
    assert computed.tolist() == LENGTHS[::-1].tolist()


def test_labels_get_no_recorded_lengths() -> None:
    batch = {"0": pad(LENGTHS, 0), "1": np.array([0, 1, 0])}
    recorded = {"input 0": pad(LENGTHS, 0), "input 1": LENGTHS, "label target": np.array([1.0, 0, 1])}
    rules, arrays = find_derived(batch, recorded, {})
    assert (rules, [*arrays]) == ({}, ["input 0", "label target"])


def test_lengths_of_sequences_without_padding_get_recorded_lengths() -> None:
    """The script's own lengths do not show that they are some."""
    full = pad(np.array([7, 7, 7]), 0)
    recorded = {"input 0": pad(LENGTHS, 0), "input 1": LENGTHS, "label target": np.array([1, 0, 1])}
    assert [*find_derived({"0": full, "1": LENGTHS - 1, "2": np.array([0, 1, 0])}, recorded, {})[1]] == [*recorded]


@pytest.mark.parametrize(("own_lengths", "is_sorted"), [([7, 5, 5], True), ([5, 7, 5], False), ([4, 4, 4], False)])
def test_recorded_examples_are_sorted_by_length_if_those_of_the_script_are(
    own_lengths: list[int], is_sorted: bool
) -> None:
    lengths, recorded = np.array(own_lengths), np.array([3, 7, 5, 7])
    batch = {"tokens": pad(lengths, 0), "lengths": lengths, "labels": np.ones(3)}
    filled = {"tokens": pad(recorded, 0), "lengths": recorded, "labels": np.arange(4), "classes": np.arange(2)}
    arrays = sort_by_length(batch, filled)
    order = [1, 3, 2, 0] if is_sorted else [0, 1, 2, 3]
    for name in ("tokens", "lengths", "labels"):
        np.testing.assert_array_equal(arrays[name], filled[name][order])
    np.testing.assert_array_equal(arrays["classes"], np.arange(2))


def test_recorded_examples_without_lengths_stay_in_their_order() -> None:
    lengths = np.array([7, 5, 3])
    filled = {"tokens": pad(lengths[::-1], 0)}
    assert sort_by_length({"tokens": pad(lengths, 0), "lengths": lengths}, filled) == filled
