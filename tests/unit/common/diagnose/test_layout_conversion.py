"""Arrays of A in the layout of B, and tokens as padded examples."""

import numpy as np
import pytest

from common.diagnose.array_layouts import convert_layout
from common.diagnose.layer_match import LayerMatch
from common.diagnose.layout_conversion import (
    convert_calls,
    has_comparable_call,
    list_comparable_calls,
    list_crossed_layers,
    perturb_calls,
)
from common.diagnose.observation import Observation
from common.diagnose.unpadded_tokens import unpack_tokens
from common.map.description import MOST_CALLS, RecordedCall, name_call

X = np.arange(48.0).reshape(2, 3, 8)


@pytest.mark.parametrize(
    ("array", "shape", "expected"),
    [
        (X, (6, 8), X.reshape(6, 8)),
        (X.reshape(6, 8), (2, 3, 8), X),
        (np.arange(6)[None], (6,), np.arange(6)),
        (X, (3, 2, 8), X.swapaxes(0, 1)),
        (X, (4, 12), None),
    ],
)
def test_tokens_move_between_one_axis_and_two(
    array: np.ndarray, shape: tuple[int, ...], expected: np.ndarray | None
) -> None:
    converted = convert_layout(array, np.zeros(shape))
    if expected is None:
        assert converted is None
    else:
        assert converted is not None and np.array_equal(converted, expected)


@pytest.mark.parametrize("is_moved", [True, False])
def test_an_array_that_only_a_seems_to_have_flattened_keeps_a_layout_that_fits(is_moved: bool) -> None:
    received, shape = np.random.default_rng(0).standard_normal((4, 6)), (2, 3)
    flattened = received.reshape(4, *shape).swapaxes(1, 2).reshape(4, 6) if is_moved else received
    a = Observation([], [], {"dense": RecordedCall(received, received[:, :3])}, {"dense": shape}, {})
    b = Observation([], [], {"dense": RecordedCall(flattened + 1e-3, received[:, :3])}, {}, {})
    converted = convert_calls([LayerMatch("linear", "dense", "dense", "dense")], a, b)["dense"].received
    assert converted is not None and np.array_equal(converted, flattened)


def test_perturbed_calls_differ_in_the_last_place() -> None:
    returned = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    observation = Observation([], [], {"norm": RecordedCall(np.arange(6), returned)}, {}, {})
    call = perturb_calls([LayerMatch("layer norm", "norm", "norm", "norm")], observation, seed=0)["norm"]
    assert call.received is None, "token ids are not perturbed"
    assert call.returned is not None and call.returned.dtype == np.float32
    assert 0 < np.abs(call.returned / returned - 1).max() < 3e-7


def test_tokens_of_padded_examples_in_one_axis_are_split() -> None:
    x = np.random.default_rng(0).standard_normal((4, 6, 8))
    batch = {"attention_mask": np.ones((4, 6))}
    assert np.array_equal(unpack_tokens(x.reshape(24, 8), batch), x)
    for other in (x, x[:, 0], x[:1], x[0, 0, 0]):
        assert unpack_tokens(other, batch) is other
        assert unpack_tokens(other, {}) is other


@pytest.mark.parametrize(("count", "is_equal", "expected"), [(1, False, True), (2, True, True), (2, False, False)])
def test_first_calls_of_a_shared_layer_are_compared_if_they_receive_the_same(
    count: int, is_equal: bool, expected: bool
) -> None:
    received = np.random.default_rng(0).standard_normal((4, 6))
    a = Observation([], [], {"dense": RecordedCall(received, received)}, {}, {}, counts={"dense": count})
    b = Observation([], [], {"dense": RecordedCall(received if is_equal else -received, received)}, {}, {})
    assert has_comparable_call(LayerMatch("linear", "dense", "dense", "dense"), a, b) is expected


def observe(received: list[np.ndarray]) -> Observation:
    """Return the observation of a model that calls a layer once with each of these arrays."""
    calls = {name_call("dense", count): RecordedCall(array, array) for count, array in enumerate(received)}
    return Observation([], [], calls, {}, {}, counts={"dense": len(received)})


def test_all_calls_of_a_layer_are_compared_if_both_models_call_it_equally_often() -> None:
    first, second, other = np.random.default_rng(0).standard_normal((3, 4, 6))
    layer = LayerMatch("linear", "dense", "dense", "dense")
    a = observe([first, second])
    for received, expected in (
        ([first, second], ["dense", "dense (call 2)"]),
        ([other, 2 * other], ["dense", "dense (call 2)"]),  # the code before the layer differs
        ([first], ["dense"]),
        ([second, first], []),  # in another order
    ):
        matches = list_comparable_calls([layer], a, observe(received))
        assert [match.path_a for match in matches] == [match.path_b for match in matches] == expected
    matches = list_comparable_calls([layer], a, observe([other, 2 * other]))
    assert list_crossed_layers(matches, a, observe([second, first])) == {"dense"}
    assert list_crossed_layers(matches, a, observe([first, other])) == set()


def test_calls_in_another_order_are_those_that_receive_the_same_arrays() -> None:
    arrays = list(np.random.default_rng(0).standard_normal((MOST_CALLS + 1, 4, 6)))
    layer = LayerMatch("linear", "dense", "dense", "dense")
    matches = list_comparable_calls([layer], observe(arrays[:3]), observe(arrays[1:4]))
    assert len(matches) == 3, "moved by one, which is a fault"
    assert list_crossed_layers(matches, observe(arrays[:3]), observe(arrays[1:4])) == set()
    assert not has_comparable_call(layer, observe(arrays[:3]), observe([*arrays[1:3], arrays[0]]))
    assert not has_comparable_call(layer, observe(arrays), observe(arrays[::-1])), "not all calls are recorded"
    matches = list_comparable_calls([layer], observe(arrays), observe(arrays))
    assert list_crossed_layers(matches, observe(arrays), observe([arrays[0], *arrays[2:], arrays[1]])) == {"dense"}


def test_several_layers_that_are_called_in_another_order_have_no_comparable_call() -> None:
    first, second = np.random.default_rng(0).standard_normal((2, 4, 6))
    layer = LayerMatch("attention", "", "attention", "out", entries_b=("query",))
    a, b = (
        Observation([], [], {path: RecordedCall(x, x) for path in ("attention", "query", "out")}, {}, {}, counts=counts)
        for x, counts in ((first, {"attention": 2}), (second, {"query": 2, "out": 2}))
    )
    assert not has_comparable_call(layer, a, b)


def test_each_call_of_a_layer_is_converted_like_the_first() -> None:
    images = np.random.default_rng(0).standard_normal((2, 4, 3, 5, 5))
    weights = np.random.default_rng(1).standard_normal((75, 8))
    calls_a, calls_b = {}, {}
    for index, image in enumerate(images):
        received = image.reshape(4, -1)
        calls_a[name_call("dense", index)] = RecordedCall(received, received @ weights)
        received_b = np.moveaxis(image, 1, -1).reshape(4, -1)
        calls_b[name_call("dense", index)] = RecordedCall(received_b, received @ weights)
    a = Observation([], [], calls_a, {"dense": (3, 5, 5)}, {}, counts={"dense": 2})
    b = Observation([], [], calls_b, {"dense": (5, 5, 3)}, {}, counts={"dense": 2})
    matches = list_comparable_calls([LayerMatch("linear", "dense", "dense", "dense")], a, b)
    converted = convert_calls(matches, a, b)
    assert converted.keys() == {"dense", "dense (call 2)"}
    for path, call in converted.items():
        np.testing.assert_array_equal(call.received, calls_b[path].received)


def test_the_output_of_a_convolution_shows_the_channels_of_an_input_of_equal_sizes() -> None:
    """B receives other numbers, to which no layout of A's is close."""
    stream = np.random.default_rng(0)
    received, other, returned = stream.standard_normal((3, 2, 4, 4, 4))
    returned = returned[:, :3]
    a = Observation([], [], {"conv": RecordedCall(received, returned)}, {}, {})
    b = Observation([], [], {"conv": RecordedCall(other, np.zeros((2, 4, 4, 3)))}, {}, {})
    converted = convert_calls([LayerMatch("convolution", "conv", "conv", "conv")], a, b)["conv"].received
    assert converted is not None and np.array_equal(converted, received.transpose(0, 2, 3, 1))
