"""Marks of nodes of the graph from which PyTorch computes gradients.

A recorder marks the outputs of a call of the model or of a loss function. A mark lives as long as the graph of the
call: the recorder keeps no graph in memory, and knows when a script has dropped one, as after an evaluation.
"""

from __future__ import annotations

import re
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch

KEY, SOURCE = "lockstep_marks", "lockstep_source"  # in the metadata of nodes
NODE_NAME = re.compile(r"(\w+?)Backward\d*")
# Functions f for which x * f'(x) is not f(x), by the names of their nodes: the gradient by a loss does not show the
# share of this loss if such a function receives it
FUNCTIONS = {
    "Sqrt", "Rsqrt", "Pow", "Exp", "Exp2", "Expm1", "Log", "Log2", "Log10", "Log1P", "Reciprocal", "Sigmoid", "Tanh",
    "Softplus", "LogSigmoid", "Logsumexp", "Softmax", "LogSoftmax", "Prod", "Erf", "Sin", "Cos",
}  # fmt: skip
PRODUCTS = {"Mul", "Div"}  # functions if more than one of their arguments depends on losses


class Mark:
    """A mark, which only nodes of the graph refer to."""


MarkReference = weakref.ref[Mark]


class HasMarks(Protocol):
    """Something that computed nodes of the graph."""

    marks: list[MarkReference]


Item = TypeVar("Item", bound=HasMarks)


def count_nodes() -> int:
    """Return the number of nodes that this thread has made; 0 in old versions of PyTorch, which do not tell it."""
    count = getattr(torch._C._autograd, "_get_sequence_nr", None)
    return 0 if count is None else int(count())


def is_computed_since(tensor: torch.Tensor, node_count: int) -> bool:
    """Check whether a tensor depends on weights, and was computed after `node_count` nodes had been made."""
    return (
        tensor.grad_fn is not None and int(getattr(tensor.grad_fn, "_sequence_nr", lambda: node_count)()) >= node_count
    )


def mark_nodes(tensors: Iterable[torch.Tensor]) -> list[MarkReference]:
    """Mark the nodes that computed some tensors, and return a reference to the mark; nothing without nodes."""
    mark = Mark()
    nodes: list[Any] = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    for node in nodes:
        node.metadata.setdefault(KEY, []).append(mark)
    return [weakref.ref(mark)] if nodes else []


def mark_source(tensors: Iterable[torch.Tensor], path: str) -> None:
    """Mark the nodes that computed what a layer returned. A node keeps its mark if an inner layer returned it."""
    nodes: list[Any] = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    for node in nodes:
        node.metadata.setdefault(SOURCE, path)


def find_sources(tensor: torch.Tensor | None) -> set[str]:
    """Return the paths of the layers from whose outputs other code computed a tensor."""
    unvisited: list[Any] = [] if tensor is None or tensor.grad_fn is None else [tensor.grad_fn]
    visited, paths = set(unvisited), set()
    while unvisited:
        node = unvisited.pop()
        if (path := node.metadata.get(SOURCE)) is not None:
            paths.add(str(path))
            continue
        parents = {parent for parent, _ in node.next_functions if parent is not None} - visited
        visited |= parents
        unvisited += parents
    return paths


def share_marks(marks: Collection[Mark], gradients: object) -> None:
    """Give the nodes that computed gradients the marks of the nodes from which they were computed."""
    for gradient in gradients if isinstance(gradients, (list, tuple)) else ():
        node: Any = gradient.grad_fn if isinstance(gradient, torch.Tensor) else None
        if node is not None:
            node.metadata.setdefault(KEY, []).extend(marks)


def list_marks(items: Iterable[HasMarks]) -> set[Mark]:
    """Return the marks of calls whose graph still exists."""
    marks = (reference() for item in items for reference in item.marks)
    return {mark for mark in marks if mark is not None}


def find_marks(tensors: Iterable[torch.Tensor], marks: Collection[Mark]) -> set[Mark]:
    """Return the marks whose nodes the tensors depend on."""
    unvisited: list[Any] = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    visited: set[object] = set()
    missing, found = {*marks}, set()
    while unvisited and missing:
        node = unvisited.pop()
        if node not in visited:
            visited.add(node)
            found_here = missing.intersection(node.metadata.get(KEY, ()))
            found |= found_here
            missing -= found_here
            unvisited += [parent for parent, _ in node.next_functions if parent is not None]
    return found


def find_nodes(tensors: Iterable[torch.Tensor], name: str, ends: Collection[Mark]) -> list[Any]:
    """Return the nodes of a name on which tensors depend, the nearest first. Nodes with one of the marks are the last.

    Args:
        tensors: The tensors.
        name: The name of the nodes.
        ends: The marks.
    """
    unvisited: deque[Any] = deque(tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None)
    visited: set[object] = set()
    nodes, last_marks = [], {*ends}
    while unvisited:
        node = unvisited.popleft()
        if node in visited or not last_marks.isdisjoint(node.metadata.get(KEY, ())):
            continue
        visited.add(node)
        nodes += [node] if node.name() == name else []
        unvisited += [parent for parent, _ in node.next_functions if parent is not None]
    return nodes


def find_functions(tensors: Iterable[torch.Tensor], marks: Collection[Mark]) -> dict[Mark, set[str]]:
    """Return the names of the functions, such as "sqrt", through which tensors depend on the nodes of each mark."""
    if not marks:
        return {}
    unvisited: list[Any] = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    below: dict[object, dict[Mark, set[str]]] = {}  # by node: the functions between it and each mark below it
    while unvisited:
        node = unvisited[-1]
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        own_marks = {*marks}.intersection(node.metadata.get(KEY, ()))
        missing = [parent for parent in parents if parent not in below] if not own_marks and node not in below else []
        unvisited += missing
        if not missing:
            unvisited.pop()
            below.setdefault(node, {mark: set() for mark in own_marks} if own_marks else _join(node, parents, below))
    return _unite([below[tensor.grad_fn] for tensor in tensors if tensor.grad_fn is not None])


def _join(
    node: Any, parents: Sequence[object], below: Mapping[object, dict[Mark, set[str]]]  # noqa: ANN401  of any class
) -> dict[Mark, set[str]]:  # fmt: skip
    """Return the functions between a node and each mark below it. `below` has the same for its parents."""
    dependent = [below[parent] for parent in parents if below[parent]]
    if not dependent:
        return {}
    match = NODE_NAME.fullmatch(node.name())
    name = match[1] if match is not None else ""
    is_divisor = name == "Div" and not (node.next_functions[0][0] in parents and below[node.next_functions[0][0]])
    is_function = name in FUNCTIONS or is_divisor or (name in PRODUCTS and len(dependent) > 1)
    return {mark: names | ({name.lower()} if is_function else set()) for mark, names in _unite(dependent).items()}


def _unite(named: Iterable[Mapping[Mark, set[str]]]) -> dict[Mark, set[str]]:
    united: dict[Mark, set[str]] = {}
    for functions in named:
        for mark, names in functions.items():
            united[mark] = united.get(mark, set()) | names
    return united


def split_used(items: Sequence[Item], marks: Collection[Mark]) -> tuple[list[Item], list[Item]]:
    """Return the items on which a loss depends, and the others, for a later loss.

    Unused items before the last used one are dropped if the script has dropped their graph.

    Args:
        items: Calls of the model or of loss functions, in the order of the calls.
        marks: The marks on whose nodes the loss depends.
    """
    used_marks = {*marks}
    used = [index for index, item in enumerate(items) if list_marks([item]) & used_marks]
    later = [
        item
        for index, item in enumerate(items)
        if index not in used and (not used or index > used[-1] or list_marks([item]))
    ]
    return [items[index] for index in used], later
