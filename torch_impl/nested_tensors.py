"""Tensors in nested containers: what the layers of any model receive and return."""

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence

from common.map.containers import replace_in_containers

Nested = TypeVar("Nested")  # a tensor, or nested lists, tuples and dicts that may contain tensors


def name_tensors(nested: object, name: str = "output") -> dict[str, torch.Tensor]:
    """Return the tensors in nested containers by name, such as output[0] or output.logits.

    A PackedSequence counts as no tensor: its tokens are in an order that no other layer has.
    """
    if isinstance(nested, torch.Tensor):
        return {name: nested}
    if isinstance(nested, PackedSequence):
        return {}
    if isinstance(nested, Mapping):
        items = [(f"{name}.{key}", value) for key, value in nested.items()]
    elif isinstance(nested, list | tuple):
        items = [(f"{name}[{index}]", value) for index, value in enumerate(nested)]
    else:
        return {}
    return {leaf: tensor for item, value in items for leaf, tensor in name_tensors(value, item).items()}


def first_tensor(nested: object) -> torch.Tensor | None:
    """Return the first floating-point tensor in nested containers; if there is none, the first tensor of any type."""
    tensors = list(name_tensors(nested).values())
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    return next(iter(floating or tensors), None)


def replace_first_tensor(nested: Nested, array: np.ndarray | None) -> Nested:
    """Replace the `first_tensor` of nested containers by an array, if the array has the same shape."""
    first = first_tensor(nested)
    if array is None or first is None or tuple(first.shape) != array.shape:
        return nested
    replacement: Nested = replace_in_containers(nested, first, torch.from_numpy(array).to(first))
    return replacement


def to_array(tensor: torch.Tensor | None) -> np.ndarray | None:
    """Copy a tensor to NumPy, without its gradient. Half-precision tensors become float32, which NumPy has."""
    if tensor is None:
        return None
    is_half = tensor.dtype in (torch.bfloat16, torch.float16)
    return (tensor.detach().float() if is_half else tensor.detach()).cpu().numpy().copy()
