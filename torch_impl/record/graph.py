"""Nodes of the graph from which PyTorch computes gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar

import torch


class HasNodes(Protocol):
    """Something that computed nodes of the graph."""

    nodes: set[object]


Item = TypeVar("Item", bound=HasNodes)


def collect_nodes(tensors: Iterable[torch.Tensor]) -> set[object]:
    """Return the nodes of tensors in the graph."""
    return {tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None}


def find_ancestors(tensors: Iterable[torch.Tensor], nodes: set[object]) -> set[object]:
    """Return those of `nodes` on which the tensors depend."""
    unvisited: list[Any] = list(collect_nodes(tensors))
    visited: set[object] = set()
    while unvisited and not nodes <= visited:
        node = unvisited.pop()
        if node not in visited:
            visited.add(node)
            unvisited += [parent for parent, _ in node.next_functions if parent is not None]
    return nodes & visited


def split_used(items: Sequence[Item], ancestors: set[object]) -> tuple[list[Item], list[Item]]:
    """Return the items on which a loss depends, and those after the last of them, for a later loss.

    Unused items before the last used one are dropped. If no item is used, all are kept for a later loss.

    Args:
        items: Calls of the model or of loss functions, in the order of the calls.
        ancestors: The nodes on which the loss depends.
    """
    used = [index for index, item in enumerate(items) if item.nodes & ancestors]
    if not used:
        return [], list(items)
    return [items[index] for index in used], list(items[used[-1] + 1 :])
