"""Connections of layers, found by the values that they receive and return."""

import numpy as np
import pytest

from common.map.connections import find_connections
from common.map.description import Connection, RecordedCall

IMAGE = np.random.default_rng(0).standard_normal((2, 4, 4, 3))


def test_relu_and_a_padding_of_a_convolution_connect() -> None:
    image = IMAGE * [1, -1, 0]  # channels of zeros are no padding
    padded = np.pad(np.maximum(image, 0), [(0, 0), (1, 1), (0, 2), (0, 0)])
    calls = {
        "first": RecordedCall(None, image),
        "padding": RecordedCall(image, padded),
        "second": RecordedCall(padded, 2 * IMAGE),
        "third": RecordedCall(padded, IMAGE),
        "zeros": RecordedCall(np.zeros((2, 3)), None),
    }
    assert find_connections({"first", "second", "third", "zeros"}, calls, {"second": -1, "zeros": -1}) == {
        "first": Connection(()),
        "second": Connection((3, 4, 4), frozenset(["first"])),
        "third": Connection((3, 6, 6)),
        "zeros": Connection((3,)),
    }


@pytest.mark.parametrize("padding", [0, 1])
def test_zeros_at_the_ends_of_an_output_do_not_break_a_connection(padding: int) -> None:
    image = np.abs(IMAGE)
    image[:, 0] = image[:, :, -1] = -1  # ReLU turns the borders into zeros
    received = np.pad(np.maximum(image, 0), [(0, 0), (padding, padding), (padding, padding), (0, 0)])
    calls = {"first": RecordedCall(None, image), "second": RecordedCall(received, IMAGE)}
    connections = find_connections({"first", "second"}, calls, {"second": -1})
    assert connections["second"] == Connection((3, 4, 4), frozenset(["first"]))
