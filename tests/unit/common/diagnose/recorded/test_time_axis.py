"""Tests of batches that have the time before the examples."""

import numpy as np

from common.diagnose.recorded.time_axis import (
    find_sizes,
    find_sizes_of_template,
    put_examples_first,
    put_layers_second,
    put_time_first,
)
from common.recording.record_format import LayerFacts

SIZES = 3, 2
TOKENS = np.arange(6).reshape(SIZES)


def describe(batch_first: bool) -> LayerFacts:
    return {
        "kind": "GRU", "path": "gru", "attributes": {"batch_first": batch_first}, "variables": {},
        "unflattened_shape": None, "composite": None, "training": True,
    }  # fmt: skip


def test_the_axes_of_time_and_examples_are_exchanged_and_back() -> None:
    np.testing.assert_array_equal(put_examples_first(TOKENS, SIZES), TOKENS.T)
    flat = TOKENS.ravel()  # the labels of all time steps
    np.testing.assert_array_equal(put_examples_first(flat, SIZES), TOKENS.T.ravel())
    for array in (TOKENS, flat, np.arange(5)):
        np.testing.assert_array_equal(put_time_first(put_examples_first(array, SIZES), SIZES), array)


def test_a_layer_that_takes_the_time_first_shows_the_sizes() -> None:
    calls = {"gru/input": np.zeros((*SIZES, 4))}
    assert find_sizes([describe(False)], calls, [TOKENS]) == SIZES
    assert find_sizes([describe(True)], calls, [TOKENS]) is None
    assert find_sizes([describe(False)], calls, [TOKENS.T]) is None  # the model exchanges them itself
    assert find_sizes([describe(False)], {"gru/input": np.zeros((3, 3, 4))}, [np.zeros((3, 3))]) is None


def test_a_template_has_the_time_first_if_only_that_fits() -> None:
    assert find_sizes_of_template([np.zeros((3, 5), int)], [TOKENS.T]) == (3, 5)
    assert find_sizes_of_template([np.zeros((5, 3), int)], [TOKENS.T]) is None
    assert find_sizes_of_template([np.zeros((3, 5))], [TOKENS.T.astype(float)]) is None  # a table of numbers


def test_the_states_of_layers_have_the_examples_first() -> None:
    assert put_layers_second(np.zeros((1, 5, 4)), 5).shape == (5, 4)
    assert put_layers_second(np.zeros((2, 5, 4)), 5).shape == (5, 2, 4)
    assert put_layers_second(np.zeros((5, 2, 4)), 5).shape == (5, 2, 4)
