"""What common.diagnose sees of a run, in neither framework's terms."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from common.mapping.description import Call


@dataclass(frozen=True)
class Observed:
    """What a model computed of a shard.

    outputs: [n, ...] and losses: [n] of each micro-batch. calls, flattened: of the layers in the first micro-batch, as
    a Trace has them. gradients: of the shard's part of the mean loss, in PyTorch's layout.
    """

    outputs: list[np.ndarray]
    losses: list[np.ndarray]
    calls: Mapping[str, Call]
    flattened: Mapping[str, tuple[int, ...]]
    gradients: dict[str, np.ndarray]
