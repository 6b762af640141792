"""The batches that the loaders of a script return while it is recorded."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from common.recording.other_arrays import list_keys, list_others, list_used
from torch_impl.record.arrays import name_leaves, view_tensor
from torch_impl.record.copies import Copies

if TYPE_CHECKING:
    from torch_impl.record.step import Arrays

MOST_BATCHES = 3  # that are kept: a loader such as Accelerate's returns batches one step late


class LoaderBatches:
    """Keeps the last batches that iterators of torch.utils.data.DataLoader or `Recorder.batches` returned."""

    def __init__(self) -> None:
        """Begin without a batch."""
        self._batches: deque[object] = deque(maxlen=MOST_BATCHES)

    def take(self, batch: object) -> None:
        """Keep a batch that a loader returned."""
        self._batches.append(batch)

    def describe(self, received: Mapping[str, object], copies: Copies) -> tuple[Arrays, dict[str, str]]:
        """Copy the arrays of the batch that neither the model nor the loss received, and name the others.

        Several batches may have equal labels: it is the batch with the most elements that they received, or the newest
        of these batches. If they received none as it is, it is the newest one.

        Args:
            received: The arrays that the model and the loss received, by name.
            copies: Makes the copies.

        Returns:
            The copies by name, and the names in the batch of the received arrays by their name.
        """
        used: dict[str, torch.Tensor] = {}
        most_elements = -1
        for batch in reversed(self._batches):
            tensors = name_leaves(batch)
            leaves = {name: view_tensor(tensor) for name, tensor in tensors.items()}
            if (elements := sum(leaves[name].size for name in list_used(leaves, received.values()))) > most_elements:
                used, most_elements = tensors, elements
        leaves = {name: view_tensor(tensor) for name, tensor in used.items()}
        others = {name: copies.copy(used[name]) for name in list_others(leaves, received.values())}
        return others, list_keys(leaves, received)
