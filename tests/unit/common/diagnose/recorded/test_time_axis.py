"""Tests of batches that have the time before the examples."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from common.diagnose.recorded.carried_states import explain_reset, list_carried_states
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.time_axis import (
    find_sizes,
    infer_follower_sizes,
    is_timed,
    list_state_sizes,
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


def test_sequences_with_numbers_of_steps_of_their_own_are_exchanged_and_back() -> None:
    sizes = (None, 2)
    for array in (TOKENS, np.arange(8).reshape(4, 2), np.zeros((5, 2, 7)), np.arange(10)):
        converted = put_examples_first(array, sizes)
        assert is_timed(array, sizes)
        assert len(converted) == (2 if array.ndim > 1 else 10)
        np.testing.assert_array_equal(put_time_first(converted, sizes), array)
    for shape in ((2, 5), (2,), (5,), ()):  # features, numbers of examples, others
        assert not is_timed(np.zeros(shape), sizes)


def test_packed_sequences_show_the_sizes_by_arrays_with_a_number_for_each_example() -> None:
    packed, lengths = {"gru/input": np.zeros((5, 4))}, np.array([3, 2])
    target = np.zeros((4, 2), int)
    layers = [describe(False)]
    assert find_sizes(layers, packed, [TOKENS, lengths]) == (None, 2)
    assert find_sizes(layers, packed, [TOKENS], [np.zeros(2, int)]) == (None, 2)
    assert find_sizes(layers, packed, [TOKENS, target]) == (None, 2)
    assert find_sizes(layers, packed, [TOKENS.T, lengths]) is None
    assert find_sizes(layers, packed, [TOKENS]) is None
    assert find_sizes(layers, {"gru/input": np.zeros((7, 4))}, [TOKENS], [np.zeros(2, int)]) is None  # too many tokens
    assert find_sizes(layers, {"gru/input": np.zeros((*SIZES, 4))}, [TOKENS, target]) == (None, 2)


def test_a_template_may_have_sequences_of_several_lengths() -> None:
    tokens, lengths = np.zeros((3, 5), int), np.zeros(5, int)
    recorded = [np.zeros((2, 3), int), np.zeros(2, int), np.zeros((2, 5), int)]
    assert infer_follower_sizes([tokens, lengths, np.zeros((4, 5), int)], recorded) == (None, 5)
    assert infer_follower_sizes([tokens, np.zeros((4, 5), int)], recorded) == (None, 5)
    assert infer_follower_sizes([tokens + 0, lengths], recorded) == (3, 5)
    assert infer_follower_sizes([np.zeros((7, 5), int), lengths], recorded) == (None, 5)  # another number of steps
    assert infer_follower_sizes([tokens.T, lengths, np.zeros((5, 4), int)], recorded) is None


def test_a_template_has_the_time_first_if_only_that_fits() -> None:
    assert infer_follower_sizes([np.zeros((3, 5), int)], [TOKENS.T]) == (3, 5)
    assert infer_follower_sizes([np.zeros((5, 3), int)], [TOKENS.T]) is None
    assert infer_follower_sizes([np.zeros((3, 5))], [TOKENS.T.astype(float)]) is None  # a table of numbers


def test_a_number_for_each_example_shows_which_axis_the_examples_have() -> None:
    recorded = [TOKENS.T, np.zeros(2, int)]
    assert infer_follower_sizes([np.zeros((3, 2), int), np.zeros(3, int)], recorded) is None
    assert infer_follower_sizes([np.zeros((3, 2), int), np.zeros(2, int)], recorded) == (3, 2)


def test_the_states_of_layers_have_the_examples_first() -> None:
    layer = describe(False)
    layer["attributes"] = {"num_layers": 1, "bidirectional": True, "hidden_size": 4, "proj_size": 0}
    sizes = list_state_sizes([layer, describe(False)])
    assert put_layers_second(np.zeros((1, 5, 4)), 5, {(1, 4)}).shape == (5, 4)
    assert put_layers_second(np.zeros((2, 5, 4)), 5, sizes).shape == (5, 2, 4)
    assert put_layers_second(np.zeros((5, 2, 4)), 5, sizes).shape == (5, 2, 4)
    assert put_layers_second(np.zeros((3, 5, 4)), 5, sizes).shape == (3, 5, 4)  # no states


def test_labels_and_outputs_are_read_with_the_examples_first_whatever_the_first_input_is() -> None:
    arrays = {
        "batch/0/input": {"lengths": np.array([3, 2]), "tokens": TOKENS},
        "batch/0/label": {"y": TOKENS}, "layer": {"gru/input": np.zeros((*SIZES, 4))},
    }  # fmt: skip
    file = SimpleNamespace(select=arrays.__getitem__, names=[], read_shapes=lambda _: [])
    rank = SimpleNamespace(open_step=lambda _: file)
    record = SimpleNamespace(steps=[1], ranks=[rank], facts={"model": {"layers": [describe(False)]}})
    side = RecordedSide("a", cast(Any, record))
    np.testing.assert_array_equal(side.batches.read_micro_batch(1, 0, 0, "label")["y"], TOKENS.T)
    np.testing.assert_array_equal(side.batches.read_micro_batch(1, 0, 0, "input")["lengths"], [3, 2])


def test_empty_arrays_are_no_states() -> None:
    empty, state = np.zeros((0, 4), np.float32), np.arange(4, dtype=np.float32)
    parts = {"input": {"x": empty}, "output": {"y": empty}}, {"input": {"x": state}, "output": {"y": state}}
    resetting, carrying = (
        SimpleNamespace(
            name=name,
            is_torch=False,
            layers=[],
            record=SimpleNamespace(steps=[1, 2]),
            batches=SimpleNamespace(
                list_micro_batches=lambda _: [(0, 0)],
                read_call=lambda *key, part=part: part[key[3]],
                read_step=lambda _, kind, part=part: part[kind],
                count_rows=lambda *_: [4],
            ),
        )
        for name, part in zip("ab", parts, strict=True)
    )
    assert list_carried_states(cast(Any, resetting), 2) == []
    assert list_carried_states(cast(Any, carrying), 2) == [("y", "x")]
    assert explain_reset(cast(Any, resetting), cast(Any, carrying), 2) is None


def test_labels_with_a_row_for_each_example_show_that_a_layer_takes_the_examples_for_the_time() -> None:
    x = np.zeros((5, 3, 4))
    calls = {"gru/input": x}
    assert find_sizes([describe(False)], calls, [x], [np.zeros((5, 1))]) is None
    for labels in (np.zeros((3, 1)), np.zeros((5, 3)), np.zeros(15)):
        assert find_sizes([describe(False)], calls, [x], [labels]) == (5, 3)
