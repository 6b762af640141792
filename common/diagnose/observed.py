"""What common.diagnose sees of a run, in neither framework's terms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True)
class LayerPair:
    """A layer of A and its counterpart.

    name: what the names of its parameters begin with. a, b: the two paths.
    """

    kind: str
    name: str
    a: str
    b: str
    settings: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})

    @property
    def title(self) -> str:
        return self.a if self.a == self.b else f"{self.a} | {self.b}"


@dataclass(frozen=True)
class Model:
    """What a stage of layers is made from: A, A disturbed by rounding, B, and B with A's arrays at every layer."""

    a: Observed
    disturbed: Observed
    b: Observed
    replayed: Observed
    pairs: Sequence[LayerPair]
    batch: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray]
