"""Marks of nodes of the graph from which PyTorch computes gradients.

A recorder marks what a call of the model or of a loss function returned. A mark lives as long as the graph of the call:
the recorder keeps no graph in memory, and knows when a script has dropped one, as after an evaluation.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import torch

KEY = "lockstep_marks"  # in the metadata of nodes


class Mark:
    """A mark, which only nodes of the graph refer to."""


MarkReference = weakref.ref[Mark]


class HasMarks(Protocol):
    """Something that computed nodes of the graph."""

    marks: list[MarkReference]


Item = TypeVar("Item", bound=HasMarks)


def mark_nodes(tensors: Iterable[torch.Tensor]) -> list[MarkReference]:
    """Mark the nodes that computed some tensors, and return a reference to the mark; nothing without nodes."""
    mark = Mark()
    nodes: list[Any] = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    for node in nodes:
        node.metadata.setdefault(KEY, []).append(mark)
    return [weakref.ref(mark)] if nodes else []


def list_marks(items: Iterable[HasMarks]) -> set[Mark]:
    """Return the marks of calls whose graph still exists."""
    marks = (reference() for item in items for reference in item.marks)
    return {mark for mark in marks if mark is not None}


def find_marks(tensors: Iterable[torch.Tensor], marks: Collection[Mark]) -> set[Mark]:
    """Return those of `marks` on whose nodes the tensors depend."""
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


def split_used(items: Sequence[Item], marks: Collection[Mark]) -> tuple[list[Item], list[Item]]:
    """Return the items on which a loss depends, and those after the last of them, for a later loss.

    Unused items before the last used one are dropped. If no item is used, all are kept for a later loss.

    Args:
        items: Calls of the model or of loss functions, in the order of the calls.
        marks: The marks on whose nodes the loss depends.
    """
    used_marks = {*marks}
    used = [index for index, item in enumerate(items) if list_marks([item]) & used_marks]
    if not used:
        return [], list(items)
    return [items[index] for index in used], list(items[used[-1] + 1 :])
