"""Tensors in nested containers: what the layers of any model receive and return."""

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import tensorflow as tf

from common.map.containers import replace_in_containers

Nested = TypeVar("Nested")  # a tensor, or nested lists, tuples and dicts that may contain tensors


def name_tensors(nested: object, name: str = "output") -> dict[str, tf.Tensor]:
    """Return the tensors in nested containers by name, such as output[0] or output.logits."""
    if isinstance(nested, tf.Tensor):
        return {name: nested}
    if isinstance(nested, Mapping):
        items = [(f"{name}.{key}", value) for key, value in nested.items()]
    elif isinstance(nested, list | tuple):
        items = [(f"{name}[{index}]", value) for index, value in enumerate(nested)]
    else:
        return {}
    return {leaf: tensor for item, value in items for leaf, tensor in name_tensors(value, item).items()}


def first_tensor(nested: object) -> tf.Tensor | None:
    """Return the first floating-point tensor in nested containers; if there is none, the first tensor of any type."""
    tensors = list(name_tensors(nested).values())
    floating = [tensor for tensor in tensors if tensor.dtype.is_floating]
    return next(iter(floating or tensors), None)


def replace_first_tensor(nested: Nested, array: np.ndarray | None) -> Nested:
    """Replace the `first_tensor` of nested containers by an array, if the array has the same shape.

    The replacement keeps the mask that Keras attached to the tensor.
    """
    first = first_tensor(nested)
    if array is None or first is None or tuple(first.shape) != array.shape:
        return nested
    tensor = tf.constant(array, first.dtype)
    tensor._keras_mask = getattr(first, "_keras_mask", None)  # Keras 3.3 has no function for it
    replacement: Nested = replace_in_containers(nested, first, tensor)
    return replacement


def to_array(tensor: tf.Tensor | None) -> np.ndarray | None:
    """Copy a tensor to NumPy; None for a symbolic tensor. Half-precision tensors become float32, which NumPy has."""
    if tensor is None or not hasattr(tensor, "numpy"):
        return None
    is_half = tensor.dtype in (tf.bfloat16, tf.float16)
    array: np.ndarray = (tf.cast(tensor, tf.float32) if is_half else tensor).numpy()
    return array
