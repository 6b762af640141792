"""Paddings of PyTorch and Keras that place the windows of a convolution equally, and those that do not."""

import numpy as np
import pytest

from common.diagnose.explain.layer import explain_layer
from common.diagnose.explain.window_starts import have_same_windows
from common.diagnose.layer_match import LayerMatch
from common.map.description import RecordedCall

STREAM = np.random.default_rng(0)


def match(
    stride: object, padding: object, padding_b: object = "same", dilation: int = 1, **settings: object
) -> LayerMatch:
    kind = str(settings.pop("kind", "convolution"))
    shared = {"stride": stride, "dilation": dilation}
    return LayerMatch(
        kind, "conv", "a", "b", {**shared, "padding": padding, **settings}, {**shared, "padding": padding_b}
    )


@pytest.mark.parametrize(
    ("layer", "size", "window", "is_same"),
    [
        (match((1, 1), (1, 1)), 6, 3, True),
        (match((1, 1), (2, 2)), 6, 3, False),
        (match((1, 1), (2, 2), dilation=2), 6, 3, True),
        (match((1, 1), (1, 1)), 6, 4, True),  # the output of PyTorch has one element less, or an output_padding
        (match((2, 2), (1, 1)), 7, 3, True),
        (match((2, 2), (1, 1)), 6, 3, False),  # Keras pads only at the end
        (match((2, 2), (3, 3)), 6, 7, False),
        (match((2, 2), (0, 0)), 6, 3, True),
        (match((1, 1), (0, 0), "valid"), 6, 3, True),
        (match(1, 1, "valid"), 6, 3, False),
        (match(1, "same"), 6, 3, True),
        (match(1, 2, "causal"), 6, 3, True),
        (match(1, 1, "causal"), 6, 3, False),
        (match(1, "unknown"), 6, 3, False),
        (match("1", 1), 6, 3, False),
        (match(1, 1, padding_mode="reflect"), 6, 3, False),
        (match((2, 2), (1, 1), kind="transposed convolution"), 6, 4, True),
        (match((2, 2), (1, 1), kind="transposed convolution"), 6, 3, False),
        (match(1, 1, kind="linear"), 6, 3, False),
    ],
)
@pytest.mark.parametrize("has_channels_last", [True, False])
def test_windows_begin_at_the_same_place(
    layer: LayerMatch, size: int, window: int, is_same: bool, has_channels_last: bool
) -> None:
    x = np.zeros((2, size, size, 3) if has_channels_last else (2, 3, size, size))
    weight = np.zeros((3, 3, window, window))
    assert have_same_windows(layer, x, weight) == is_same
    assert not have_same_windows(layer, x, None)
    assert not have_same_windows(layer, np.zeros((2, size, size, 4)), weight)


@pytest.mark.parametrize(("stride", "size", "cause"), [(1, 6, "layer"), (2, 7, "layer"), (2, 6, "padding")])
def test_equal_paddings_explain_no_other_output(stride: int, size: int, cause: str) -> None:
    x, count = STREAM.standard_normal((2, size, size, 3)), -(-size // stride)
    a, b = (RecordedCall(x, STREAM.standard_normal((2, count, count, 3))) for _ in "ab")
    weights = {"conv.weight": np.zeros((3, 3, 3, 3)), "conv.bias": np.zeros(3)}
    explanation = explain_layer(match((stride, stride), (1, 1)), a, b, weights, {})
    assert (explanation.cause, explanation.confirmed) == (cause, False)


def test_paddings_that_are_not_recorded_may_differ_at_strides() -> None:
    x = STREAM.standard_normal((2, 6, 6, 3))
    a, b = (RecordedCall(x, STREAM.standard_normal((2, 3, 3, 3))) for _ in "ab")
    layer = LayerMatch("convolution", "conv", "a", "b", {"stride": 2}, {"stride": 2, "padding": "same"})
    weights = {"conv.weight": np.zeros((3, 3, 3, 3)), "conv.bias": np.zeros(3)}
    assert explain_layer(layer, a, b, weights, {}).cause == "same_padding_at_strides"
