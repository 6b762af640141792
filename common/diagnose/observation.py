"""The report of a process of one framework on one computation of its model, as plain NumPy arrays."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from common.map.description import RecordedCall


@dataclass(frozen=True)
class Observation:
    """Everything that one model computed on one shard, which is a list of micro-batches.

    Attributes:
        outputs: Outputs [n, ...] of each micro-batch.
        losses: Losses [n] of each micro-batch.
        calls: What each layer received and returned in the first micro-batch, by the layer's path.
        unflattened_shapes: Shape of an example before the model flattened it for a layer, by the layer's path.
        gradients: Gradients of the shard's part of the mean loss over the global batch, by parameter, in PyTorch's
            layout.
    """

    outputs: list[np.ndarray]
    losses: list[np.ndarray]
    calls: Mapping[str, RecordedCall]
    unflattened_shapes: Mapping[str, tuple[int, ...]]
    gradients: dict[str, np.ndarray]
