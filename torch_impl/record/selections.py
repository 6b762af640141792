"""Indices and masks by which a script selects from what depends on the outputs of its model, such as labels.

They are read from the graph. Tensor.__getitem__ is not replaced: a class with a method of this name in Python counts as
a sequence, so that torch.tensor([x]) would fail for a tensor x with a single number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from torch_impl.record.copies import Copies
from torch_impl.record.graph import Mark, find_nodes
from torch_impl.record.loss_calls import Operand, are_rows

SELECTION = "IndexBackward0"  # name of the nodes
MOST_CONSTANTS = 8  # an index with fewer elements, and fewer than the tensor has rows, may be a list in the code


def describe_selections(
    losses: Sequence[torch.Tensor],
    outputs: Collection[Mark],
    copies: Copies,
    find_number: Callable[[torch.Tensor], int | None],
) -> list[Operand]:
    """Return the indices and masks between the outputs of a model and its losses, in the order of the selections.

    Args:
        losses: The losses.
        outputs: The marks of the outputs; none if the graph does not show them.
        copies: Copies the indices.
        find_number: Returns the number of a tensor in the list of operations.
    """
    nodes = reversed(find_nodes(losses, SELECTION, outputs)) if outputs else ()
    return [
        Operand(copies.copy(index), [], is_selection=True, number=find_number(index))
        for node in nodes
        for index in _list_indices(node)
    ]


def _list_indices(node: Any) -> Iterator[torch.Tensor]:  # noqa: ANN401  of any class
    try:
        indices = node._saved_indices
    except RuntimeError:  # the script has changed an index in place
        return
    rows = int(next(iter(getattr(node, "_saved_self_sym_sizes", ())), MOST_CONSTANTS))
    for index in indices:
        is_list = index is not None and index.dtype != torch.bool and index.numel() < min(rows, MOST_CONSTANTS)
        if index is not None and index.numel() > 1 and not is_list and not are_rows(index):
            yield index
