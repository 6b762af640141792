"""Parts: what a layer consists of where the other side may have several layers for it, in PyTorch's layout.

An attention has four parts (the projections of query, key and value, and the output), an LSTM of two layers has two. A
part has the same kind, sizes and roles on both sides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from common.map.transformation import SourceParameter, TransformationStep


@dataclass(frozen=True)
class TorchSources:
    """What fills a role: torch sources, and how they are joined (see ParameterTransformation)."""

    sources: tuple[SourceParameter, ...]
    joined: str = ""


@dataclass(frozen=True)
class KerasTarget:
    """The Keras variable of a role, and the steps to it from PyTorch's layout."""

    name: str
    steps: tuple[TransformationStep, ...] = ()


@dataclass(frozen=True)
class Sublayer:
    """sizes: what must be equal on both sides, such as the shape of the weight in PyTorch's layout.

    arrays: by role, such as weight and bias. output: the path of the layer that returns this part's output; None where
    none does. flattened: see LayerDescription. settings: what the two sides should have in common, such as epsilon.
    """

    kind: str
    path: str
    sizes: tuple[int, ...]
    arrays: Mapping[str, TorchSources | KerasTarget]
    output: str | None = None
    flattened: tuple[int, ...] | None = None
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def signature(self) -> tuple[str, tuple[int, ...]]:
        """Parts that may be paired have the same one."""
        return self.kind, self.sizes


class LayerPair(NamedTuple):
    """A PyTorch layer and its counterpart in Keras."""

    torch: Sublayer
    keras: Sublayer


def list_variable_names(array: TorchSources | KerasTarget) -> list[str]:
    """The variables that fill a role."""
    return [source.name for source in array.sources] if isinstance(array, TorchSources) else [array.name]
