"""What common.diagnose sees of a run, in neither framework's terms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.diagnose.rounding import precision_of
from common.map.description import Call


@dataclass(frozen=True)
class Observation:
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
    """What a stage of layers is made from.

    disturbed: A with weights that are disturbed by rounding. alone: so too, and with A's arrays at every layer,
    disturbed likewise: what rounding does to a layer alone. replayed: B with A's arrays at every layer. precision: of
    the training. one_framework: of both sides; two choose by themselves what they compute in bfloat16.
    """

    a: Observation
    disturbed: Observation
    alone: Observation
    b: Observation
    replayed: Observation
    pairs: Sequence[LayerPair]
    batch: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray]
    precision: str = "float64"
    one_framework: bool = False

    @property
    def rounded(self) -> Observation:
        """What says how much rounding does to a layer on A's arrays."""
        return self.alone if self.one_framework or self.precision != "bfloat16" else self.disturbed

    def precision_of(self, a: np.ndarray, b: np.ndarray) -> str:
        """In which a layer's arrays are compared: in training in bfloat16 some of them are float32."""
        return precision_of(a, b) if self.one_framework and self.precision == "bfloat16" else self.precision
