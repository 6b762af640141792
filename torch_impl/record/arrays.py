"""Tensors of a training script as NumPy arrays, and the names of tensors in nested containers."""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

NUMPY_TYPES = {  # the types that both NumPy and safetensors have
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
    torch.float64,
}  # fmt: skip


def view_tensor(tensor: torch.Tensor) -> np.ndarray:
    """Return the values of a tensor. The array may share the tensor's memory: use it before the script continues."""
    values = tensor.detach()
    if values.layout != torch.strided:
        values = values.to_dense()
    if values.is_complex():
        values = torch.view_as_real(values)
    if values.dtype not in NUMPY_TYPES:
        values = values.to(torch.float32)
    array: np.ndarray = values.cpu().resolve_neg().numpy()
    return array


def copy_tensor(tensor: torch.Tensor) -> np.ndarray:
    """Return a copy of the values of a tensor."""
    array = view_tensor(tensor)
    shares_memory = tensor.layout == torch.strided and array.__array_interface__["data"][0] == tensor.data_ptr()
    return np.array(array, order="C") if shares_memory else np.ascontiguousarray(array).reshape(array.shape)


def convert_array(array: np.ndarray, template: torch.Tensor) -> torch.Tensor:
    """Return an array as a tensor with the device, the type and the layout, such as a sparse one, of a template."""
    tensor = torch.from_numpy(np.array(array, order="C")).to(template.device, template.dtype)
    return tensor if template.layout == torch.strided else tensor.to_sparse(layout=template.layout)


def name_tensors(nested: object) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor) for the tensors in nested containers. A name joins keys and positions, as in "0.labels"."""
    return ((name, leaf) for name, leaf in _walk(nested) if isinstance(leaf, torch.Tensor))


def name_leaves(nested: object) -> dict[str, torch.Tensor]:
    """Return the tensors of a batch, its NumPy arrays and its lists of lengths as tensors, by name."""
    leaves = {
        name: leaf if isinstance(leaf, torch.Tensor) else torch.from_numpy(np.array(leaf, order="C"))
        for name, leaf in _walk(nested)
    }
    return {**leaves, **name_lengths(nested, leaves.values())}


def _walk(nested: object, name: str = "") -> Iterator[tuple[str, torch.Tensor | np.ndarray]]:
    """Yield the names and values of tensors and of arrays of numbers in nested containers."""
    if isinstance(nested, torch.Tensor) or _is_array(nested):
        yield name or "0", nested  # type: ignore[misc]
        return
    for key, value in _list_items(nested):
        yield from _walk(value, f"{name}.{key}" if name else str(key))


def _is_array(value: object) -> bool:
    """Check whether a value is a NumPy array that PyTorch of every version can convert."""
    return (
        isinstance(value, np.ndarray)
        and (value.dtype.kind in "bif" or value.dtype == np.uint8)
        and value.dtype.isnative
    )


def _list_items(nested: object) -> list[tuple[object, object]]:
    """Return the items of a container with their keys, positions or attributes; none of another object."""
    if isinstance(nested, Mapping):
        return list(nested.items())
    if isinstance(nested, (list, tuple)):
        return list(enumerate(nested))
    if dataclasses.is_dataclass(nested) and not isinstance(nested, type):
        return list(vars(nested).items())
    return list(_list_attributes(nested).items())


def replace_tensors(nested: Any, tensors: Mapping[str, torch.Tensor], name: str = "") -> Any:  # noqa: ANN401
    """Return nested containers with some tensors replaced, NumPy arrays by arrays, and lists of integers by lists.

    Args:
        nested: The containers.
        tensors: The replacements by name, as in name_leaves.
        name: The name of the containers in others.
    """
    if isinstance(nested, torch.Tensor):
        return tensors.get(name or "0", nested)
    if isinstance(nested, np.ndarray):
        return tensors[name or "0"].numpy().astype(nested.dtype) if (name or "0") in tensors else nested
    if isinstance(nested, list) and name in tensors:
        return tensors[name].tolist()

    def replace(key: object, value: object) -> Any:  # noqa: ANN401
        return replace_tensors(value, tensors, f"{name}.{key}" if name else str(key))

    if isinstance(nested, Mapping):
        copied = copy.copy(nested)
        for key, value in nested.items():
            copied[key] = replace(key, value)  # type: ignore[index]
        return copied
    if isinstance(nested, (list, tuple)):
        values = [replace(key, value) for key, value in enumerate(nested)]
        return type(nested)(*values) if hasattr(nested, "_fields") else type(nested)(values)
    if dataclasses.is_dataclass(nested) and not isinstance(nested, type):
        return dataclasses.replace(nested, **{key: replace(key, value) for key, value in vars(nested).items()})
    if attributes := _list_attributes(nested):
        copied = copy.copy(nested)
        vars(copied).update({key: replace(key, value) for key, value in attributes.items()})
        return copied
    return nested


def _list_attributes(nested: object) -> dict[str, Any]:
    """Return the tensors and lengths among the attributes of an object with tensors, such as a batch of torchtext."""
    if isinstance(nested, (type, torch.nn.Module)) or not hasattr(nested, "__dict__"):
        return {}
    attributes = {name: x for name, x in vars(nested).items() if isinstance(x, torch.Tensor) or _are_integers(x)}
    return attributes if any(isinstance(x, torch.Tensor) for x in attributes.values()) else {}


def _are_integers(value: object) -> bool:
    return isinstance(value, list) and len(value) > 1 and all(type(number) is int for number in value)


def name_lengths(nested: object, leaves: Iterable[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the lists with an integer for each example, such as lengths, as tensors by the names of name_tensors.

    Args:
        nested: The containers.
        leaves: The tensors in them, which show the number of examples.
    """
    items = [(key, value) for key, value in _list_items(nested) if _are_integers(value)]
    counts = {len(tensor) for tensor in leaves if tensor.ndim}
    return {str(key): torch.tensor(value) for key, value in items if len(value) in counts}  # type: ignore[arg-type]


def first_tensor(nested: object) -> torch.Tensor | None:
    """Return the first floating-point tensor in nested containers; if there is none, the first tensor of any type."""
    tensors = [tensor for _, tensor in name_tensors(nested)]
    return next((tensor for tensor in tensors if tensor.is_floating_point()), tensors[0] if tensors else None)


def name_arguments(args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """Return the arguments of a call by keyword or position, with NumPy arrays and lists of lengths as tensors."""
    return name_leaves({**{str(position): value for position, value in enumerate(args)}, **kwargs})


def list_references(nested: object) -> list[weakref.ref[torch.Tensor]]:
    """Return weak references to the tensors in nested containers."""
    return [weakref.ref(tensor) for _, tensor in name_tensors(nested)]


def read_version(tensor: torch.Tensor) -> int:
    """Return the number of in-place changes of a tensor."""
    return 0 if tensor.is_inference() else tensor._version
