"""Tests of the arrays of a batch that neither the model nor a loss function received."""

import numpy as np

from common.recording.other_arrays import list_keys, list_others, list_used

X = np.arange(12.0).reshape(4, 3)


def test_equal_numbers_in_another_shape_or_type_were_received() -> None:
    batch = {"x": X, "y": np.arange(4), "weights": X[:, 0] + 0.5}
    received = [X.reshape(4, 1, 3), np.arange(4, dtype=np.int8)[:, None]]
    assert list_used(batch, received) == ["x", "y"]
    assert list_others(batch, received) == ["weights"]


def test_joined_arrays_are_used_but_were_not_received_as_a_whole() -> None:
    batch = {"first": X, "second": X + 1, "labels": np.arange(4)}
    received = [np.concatenate([X, X + 1])]
    assert list_used(batch, received) == ["first", "second"]
    assert list_others(batch, received) == ["first", "second", "labels"]


def test_arrays_without_a_row_for_each_example_are_others() -> None:
    batch = {"x": X, "count": np.array(4), "edges": np.zeros((2, 3)), "shape": np.array([3, 3])}
    assert list_others(batch, [X, np.array(4), np.array(2.5), object()]) == ["edges", "shape"]
    assert list_used({"count": np.array(4), "x": X[:2]}, [np.array(4.0), X]) == ["count", "x"]


def test_received_arrays_have_the_keys_of_the_batch() -> None:
    """An array that the script changes before its model receives it has none, and one key is used once."""
    batch = {"noise": X, "times": np.arange(4), "copy": X}
    received = {"input/0": X + 0.5, "input/1": np.arange(4.0)[:, None], "label/y": X, "label/z": X, "label/w": object()}
    assert list_keys(batch, received) == {"input/1": "times", "label/y": "noise", "label/z": "copy"}
