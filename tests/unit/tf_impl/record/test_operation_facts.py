"""Tests of the description of operations."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from keras import ops
from tensorflow.python.framework import op_callbacks

from common.recording.index_notation import write_index
from common.recording.operation_format import MOST_ORDERED
from tf_impl.record.operation_facts import describe_operation, measure, select_names


@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=3), elements=st.floats(-1e3, 1e3, width=32)), st.data())
def test_statistics_do_not_depend_on_the_order_of_axes(array: np.ndarray, data: st.DataObject) -> None:
    axes = data.draw(st.permutations(range(array.ndim)))
    statistics, others = measure(tf.constant(array)), measure(tf.constant(array.transpose(axes)))
    for key in ("sum", "norm", "minimum", "maximum"):
        assert statistics[key] == pytest.approx(others[key], rel=1e-9, abs=1e-9)
    assert statistics["sum"] == pytest.approx(array.astype(np.float64).sum(), rel=1e-9, abs=1e-9)
    assert statistics["norm"] == pytest.approx(np.linalg.norm(array.astype(np.float64)), rel=1e-9)
    assert (statistics["minimum"], statistics["maximum"]) == (array.min(), array.max())


@pytest.mark.parametrize(
    ("tensor", "dtype", "values"),
    [
        (tf.constant([True, False, True]), "bool", (2.0, 2**0.5, 0.0, 1.0)),
        (tf.constant([3, -4]), "int32", (-1.0, 5.0, -4.0, 3.0)),
        (tf.constant([3, -4], tf.bfloat16), "bfloat16", (-1.0, 5.0, -4.0, 3.0)),
        (tf.constant([3 + 0j, -4j], tf.complex64), "complex64", (-1.0, 5.0, -4.0, 3.0)),
        (tf.constant([1.0, float("inf")]), "float32", (None,) * 4),
        (tf.constant([1.0, float("nan")]), "float32", (None,) * 4),
        (tf.zeros([0, 3]), "float32", (None,) * 4),
        (tf.constant(["text"]), "string", (None,) * 4),
    ],
)
def test_statistics_of_kinds_of_tensors(tensor: tf.Tensor, dtype: str, values: tuple[float | None, ...]) -> None:
    statistics = measure(tensor)
    assert (statistics["dtype"], statistics["shape"]) == (dtype, list(tensor.shape))
    assert tuple(statistics[key] for key in ("sum", "norm", "minimum", "maximum")) == values


def test_centers_are_sums_of_the_elements_times_their_positions() -> None:
    array = np.array([[1, 2, 4], [8, 16, 32]], np.float32)
    expected = [8.0 + 16 + 32, 2 / 2 + 16 / 2 + 4 + 32]
    assert measure(tf.constant(array))["centers"] == expected
    assert measure(tf.constant(array, tf.bfloat16))["centers"] == expected
    assert measure(tf.constant(array.astype(np.int64)))["centers"] == expected
    assert measure(tf.constant([False, True, True]))["centers"] == [1.5]
    assert measure(tf.constant([[5.0]]))["centers"] == [0, 0]
    assert measure(tf.constant(array[::-1]))["centers"] == [1 + 2 + 4, expected[1]]


@pytest.mark.parametrize(
    "tensor",
    [tf.zeros([MOST_ORDERED + 1]), tf.constant([1.0, float("nan")]), tf.constant([3 + 0j, -4j]), tf.zeros([0, 3])],
    ids=["large", "not finite", "complex", "empty"],
)
def test_other_tensors_have_no_centers(tensor: tf.Tensor) -> None:
    assert "centers" not in measure(tensor)


@contextmanager
def describe_operations() -> Iterator[dict[str, tuple[dict[str, object], int]]]:
    """Provide the arguments and the number of inputs of the last operation of each name."""
    described: dict[str, tuple[dict[str, object], int]] = {}

    def take(name: str | bytes, inputs: tuple, attrs: tuple, outputs: list, *_: object, **kwargs: object) -> None:
        name = name.decode() if isinstance(name, bytes) else name
        result = describe_operation(name, inputs, dict(zip(attrs[::2], attrs[1::2], strict=True)))
        if result is not None:
            described[name] = result[0], len(result[1])

    op_callbacks.add_op_callback(take)
    try:
        yield described
    finally:
        op_callbacks.remove_op_callback(take)


def test_constants_are_arguments_and_scalars_are_inputs() -> None:
    x = tf.ones([2, 3])
    with describe_operations() as described:
        tf.concat([x, x], axis=1)
        tf.transpose(x, [1, 0])
        tf.reduce_max(x, axis=-1, keepdims=True)
        tf.reshape(x, [3, -1])
        tf.cast(x, tf.int64)
        tf.random.stateless_uniform([2], seed=[1, 2])
        tf.shape(x)
        _ = x[:, 1:] * 0.5
    assert described["ConcatV2"] == ({"axis": 1}, 2)
    assert described["Transpose"] == ({"perm": [1, 0]}, 1)
    assert described["Max"] == ({"axis": -1, "keep_dims": True}, 1)
    assert described["Reshape"] == ({"shape": [3, -1]}, 1)
    assert described["Cast"] == ({"dtype": "int64"}, 1)
    assert described["StatelessRandomUniformV2"] == ({"shape": [2]}, 0)
    assert described["StridedSlice"] == ({"index": "[:, 1:]"}, 1)
    assert described["Mul"] == ({}, 2)
    assert "Shape" not in described


@pytest.mark.parametrize(
    ("name", "select", "index"),
    [
        ("StridedSlice", lambda x: x[:, -1], np.s_[:, -1]),
        ("StridedSlice", lambda x: x[..., 1:, tf.newaxis], np.s_[..., 1:, None]),
        ("StridedSlice", lambda x: x[1, ::-2], np.s_[1, ::-2]),
        ("StridedSlice", lambda x: x[:, :2, 0:4:3], np.s_[:, :2, 0:4:3]),
        ("Slice", lambda x: tf.slice(x, [0, 1, 0], [-1, 1, 3]), np.s_[:, 1:2, :3]),
        ("Slice", lambda x: tf.slice(x, [1, 0, 2], [1, 3, -1]), np.s_[1:, :, 2:]),
        ("Slice", lambda x: ops.slice(x, (0, 0, 1), (2, 2, 2)), np.s_[:, :2, 1:3]),
        ("ReverseV2", lambda x: tf.reverse(x, [-1, 0]), np.s_[::-1, :, ::-1]),
        ("ReverseV2", lambda x: ops.flip(x, axis=1), np.s_[:, ::-1]),
        ("GatherV2", lambda x: tf.gather(x, 1), np.s_[1]),
        ("GatherV2", lambda x: tf.gather(x, 2, axis=-1), np.s_[:, :, 2]),
        ("GatherV2", lambda x: ops.take(x, 2, axis=1), np.s_[:, 2]),
    ],
)
def test_selections_have_an_index(name: str, select: Callable[[tf.Tensor], tf.Tensor], index: Any) -> None:
    array = np.arange(24.0).reshape(2, 3, 4)
    with describe_operations() as described:
        result = select(tf.constant(array))
    assert described[name] == ({"index": write_index(index)}, 1)
    assert np.array_equal(np.squeeze(result), np.squeeze(array[index]))


def test_indices_of_tensors_are_inputs() -> None:
    with describe_operations() as described:
        tf.gather(tf.ones([2, 3]), [0, 1], axis=1)
    assert described["GatherV2"] == ({"batch_dims": 0, "axis": 1}, 2)


def test_names_are_those_of_the_calls_on_which_the_loss_depends() -> None:
    names = {
        "0/layer/dense/input": 0, "0/output/0": 1, "2/layer/dense/input": 2, "2/input/x.0": 3, "2/output/0": 4,
        "3/input/x.0": 5, "0/label/y_true": 6, "1/label/y_true": 7, "weight/dense/kernel": 8,
    }  # fmt: skip
    assert select_names(names, [2, 3], [0, 1]) == {
        "layer/dense/input": 2,
        "batch/0/input/x.0": 3,
        "batch/0/output/0": 4,
        "batch/0/call/1/input/x.0": 5,
        "batch/0/label/y_true": 6,
        "batch/0/label/y_true.1": 7,
        "weight/dense/kernel": 8,
    }
