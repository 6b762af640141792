"""Tensors in nested containers, and their copies as arrays by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional, Union

import numpy as np
import tensorflow as tf

from common.recording.record_writer import SAMPLE_SIZE, Sample, draw_sample

MOST_ELEMENTS = 2**24  # of a sparse matrix that is recorded as a dense one
Arrays = dict[str, Union[np.ndarray, Sample]]  # noqa: UP007


def name_tensors(nested: object, name: str = "") -> dict[str, tf.Tensor]:
    """Return the tensors in nested containers by name. A name joins keys and positions, as in "0.labels".

    A ragged or sparse tensor counts as a container of the tensors that it consists of, and a sparse matrix of numbers,
    such as the edges of a graph, as a dense one: PyTorch's has other parts.
    """
    if is_matrix(nested):
        nested = tf.sparse.to_dense(nested)
    if isinstance(nested, tf.Tensor):
        return {name or "0": nested}
    if isinstance(nested, np.ndarray):
        return {name or "0": tf.convert_to_tensor(nested)}
    if isinstance(nested, (tf.RaggedTensor, tf.SparseTensor)):
        nested = tf.nest.flatten(nested, expand_composites=True)
    if isinstance(nested, Mapping):
        items = [(str(key), value) for key, value in nested.items()]
    elif isinstance(nested, (list, tuple)):
        items = [(str(position), value) for position, value in enumerate(nested)]
    else:
        return {}
    paths = {f"{name}.{key}" if name else key: value for key, value in items}
    return {leaf: tensor for path, value in paths.items() for leaf, tensor in name_tensors(value, path).items()}


def is_matrix(nested: object) -> bool:
    """Check whether an object is a sparse matrix of floating-point numbers that is small enough to be dense."""
    if not isinstance(nested, tf.SparseTensor) or not nested.dtype.is_floating:
        return False
    return nested.shape.rank == 2 and 0 < (nested.shape.num_elements() or 0) <= MOST_ELEMENTS


def replace_tensors(nested: Any, tensors: Mapping[str, tf.Tensor], name: str = "") -> Any:  # noqa: ANN401
    """Return nested containers with some tensors replaced. tensors: the replacements by name, as in name_tensors."""
    if isinstance(nested, (tf.Tensor, np.ndarray)):
        return tensors.get(name or "0", nested)
    if is_matrix(nested):
        return tf.sparse.from_dense(tensors[name or "0"]) if (name or "0") in tensors else nested

    def replace(key: object, value: object) -> Any:  # noqa: ANN401
        return replace_tensors(value, tensors, f"{name}.{key}" if name else str(key))

    if isinstance(nested, Mapping):
        return type(nested)((key, replace(key, value)) for key, value in nested.items())  # type: ignore[call-arg]
    if isinstance(nested, (list, tuple)):
        values = [replace(key, value) for key, value in enumerate(nested)]
        return type(nested)(*values) if hasattr(nested, "_fields") else type(nested)(values)
    return nested


def first_tensor(nested: object) -> Optional[tf.Tensor]:  # noqa: UP045  Python 3.9 has no other notation at run time
    """Return the first floating-point tensor in nested containers; if there is none, the first tensor of any type."""
    tensors = list(name_tensors(nested).values())
    return next(iter([tensor for tensor in tensors if tensor.dtype.is_floating] or tensors), None)


def is_number(dtype: tf.DType) -> bool:
    """Check whether a record can hold values of a type."""
    return bool(dtype.is_floating or dtype.is_integer or dtype.is_bool)


def is_eager(tensor: object) -> bool:
    """Check whether a tensor has values: Keras builds layers with tensors that have none."""
    return hasattr(tensor, "numpy")


def is_storable(tensor: tf.Tensor) -> bool:
    """Check whether a record can hold a tensor: it has numbers, and is not symbolic."""
    return is_eager(tensor) and is_number(tensor.dtype)


def view_array(tensor: object) -> np.ndarray:
    """Return the values of a tensor, an IndexedSlices or a variable. Arrays in bfloat16 become float32.

    The array may share the memory of the tensor. TensorFlow does not change this memory while the array exists.
    """
    dense = tf.convert_to_tensor(tensor)
    return np.asarray(tf.cast(dense, tf.float32) if dense.dtype == tf.bfloat16 else dense)


def to_array(tensor: object) -> np.ndarray:
    """Copy a tensor, an IndexedSlices or a variable to NumPy. Arrays in bfloat16 become float32."""
    return np.array(view_array(tensor))


def list_results(result: object) -> list[tf.Tensor]:
    """Return the floating-point tensors that a call or a step returned."""
    strategy = tf.distribute.get_strategy()
    local = [part for leaf in tf.nest.flatten(result) for part in strategy.experimental_local_results(leaf)]
    return [part for part in local if isinstance(part, tf.Tensor) and part.dtype.is_floating]


def list_step_results(result: object) -> list[tf.Tensor]:
    """Return the floating-point tensors that a step returned; only the loss if it has that name.

    The losses of single outputs, which Keras returns with it, are means over the epoch so far.
    """
    return list_results(result["loss"] if isinstance(result, dict) and "loss" in result else result)


def count_bytes(variable: Any) -> int:  # noqa: ANN401  a tf.Variable or a keras.Variable
    """Return the number of bytes of a variable."""
    size = 1
    for length in variable.shape:
        size *= int(length)
    return size * tf.as_dtype(variable.dtype).size


class Copies:
    """Copies of tensors up to a number of bytes, after which samples stand for them.

    The copy of the same tensor is the same array, so that a record stores it once.

    Attributes:
        omitted: Names of the tensors that a record cannot hold, such as texts, with their types.
    """

    def __init__(self, max_bytes: int) -> None:
        self.omitted: dict[str, str] = {}
        self._remaining_bytes = max_bytes
        self._copies: dict[int, tuple[tf.Tensor, np.ndarray | Sample]] = {}  # by the identity of the tensor

    def copy(self, tensors: Mapping[str, tf.Tensor]) -> Arrays:
        """Copy those tensors that a record can hold."""
        for name, tensor in tensors.items():
            if not is_storable(tensor) and is_eager(tensor):
                self.omitted[name] = tensor.dtype.name
        return {name: self._copy(tensor) for name, tensor in tensors.items() if is_storable(tensor)}

    def forget(self) -> None:
        """Forget the tensors, which would stay in memory. The remaining number of bytes stays."""
        self._copies.clear()

    def _copy(self, tensor: tf.Tensor) -> np.ndarray | Sample:
        if id(tensor) not in self._copies:
            array = view_array(tensor)
            if array.nbytes > self._remaining_bytes and array.size > SAMPLE_SIZE:
                self._copies[id(tensor)] = (tensor, draw_sample(array))
            else:
                self._remaining_bytes -= array.nbytes
                self._copies[id(tensor)] = (tensor, np.array(array))
        return self._copies[id(tensor)][1]
