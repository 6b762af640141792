"""The shape of a layer's input before the model flattened it.

The files that record run in the environment of the script: they import only NumPy, their framework and each
other, and run on Python 3.9.
"""

from __future__ import annotations

import torch

from common.recording.flattened_axes import find_flattened

ELEMENTWISE = (
    "Add", "Celu", "Clone", "Div", "Elu", "Gelu", "Hardswish", "Hardtanh", "LeakyRelu", "Mish", "Mul", "NativeDropout",
    "FusedDropout", "Relu", "Sigmoid", "Silu", "Softplus", "Sub", "Tanh", "ToCopy", "Threshold",
)  # fmt: skip
RESHAPES = ("View", "ReshapeAlias", "UnsafeView")


def find_unflattened_shape(tensor: torch.Tensor | None) -> list[int] | None:
    """Return the sizes of the axes that a model merged to the last axis [n, features] or [n, time, features], or None.

    Args:
        tensor: The input of a layer. Its graph shows the shapes; without a graph, that of which it is a view.
    """
    if tensor is None or tensor.dim() not in (2, 3):
        return None
    sizes = _find_unflattened_matrix(tensor) if tensor.dim() == 2 else _find_merged_axes(tensor)
    return None if sizes is None else [int(size) for size in sizes]


def _find_unflattened_matrix(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the shape of one example before a model flattened it to a matrix [n, features], or None."""
    base = getattr(tensor, "_base", None)
    shapes = [] if base is None else [_sort_axes(base)]
    node = tensor.grad_fn
    while node is not None:
        name = _name_function(node)
        if name in RESHAPES and (shape := _read_shape(node)) is not None:
            shapes.append(shape)
        elif name not in ELEMENTWISE:
            break
        node = node.next_functions[0][0] if node.next_functions else None
    fitting = [shape for shape in shapes if len(shape) > 2 and find_flattened(shape, tensor.shape) is not None]
    if base is not None and fitting[1:] and len(fitting[1]) < len(fitting[0]) and 1 in fitting[0][1:]:
        fitting.pop(0)  # of an operation that pools one axis as two, such as avg_pool1d
    return fitting[0][1:] if fitting else None


def _find_merged_axes(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the sizes of the axes that a model merged to the last axis [n, time, features], or None."""
    axis, shape, node = 2, list(tensor.shape), tensor.grad_fn
    while node is not None:
        name = _name_function(node)
        if name in RESHAPES:
            before = _read_shape(node)
            return None if before is None else find_flattened(before, shape, axis)
        if name in ("Permute", "Transpose"):
            order = _read_order(node, name, len(shape))
            axis, shape = order[axis], [shape[order.index(place)] for place in range(len(shape))]
        elif name not in ELEMENTWISE:
            return None
        node = node.next_functions[0][0] if node.next_functions else None
    return None


def _name_function(node: torch.autograd.graph.Node) -> str:
    return node.name().partition("Backward")[0]


def _read_shape(node: torch.autograd.graph.Node) -> tuple[int, ...] | None:
    """Return the shape of the tensor that a function reshaped."""
    sizes = getattr(node, "_saved_self_sym_sizes", None) or getattr(node, "_saved_self_sizes", None)
    return None if sizes is None else tuple(sizes)


def _read_order(node: torch.autograd.graph.Node, name: str, count: int) -> list[int]:
    """Return the axes that a function permuted, in their new order. Saved numbers of axes have no sign."""
    if name == "Permute":
        return [_add_sign(axis) % count for axis in node._saved_dims]  # type: ignore[attr-defined]
    order = list(range(count))
    first, second = (_add_sign(getattr(node, f"_saved_dim{place}")) % count for place in (0, 1))
    order[first], order[second] = order[second], order[first]
    return order


def _add_sign(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def _sort_axes(base: torch.Tensor) -> tuple[int, ...]:
    """Return the sizes of a tensor in the order of its strides: the shape that a view needs to avoid a copy.

    The channels may be last there, in the second axis of the tensor.
    """
    return tuple(base.shape[axis] for axis in sorted(range(base.dim()), key=base.stride, reverse=True))
