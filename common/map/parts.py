"""Parts: what a layer consists of where the other side may have several layers for it, in PyTorch's layout.

An attention has four parts (the projections of query, key and value, and the output), an LSTM of two layers has two. A
part has the same kind, sizes and roles on both sides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.map.transformations import Source, Step


@dataclass(frozen=True)
class TorchArray:
    """What fills a role: torch sources, and how they are joined (see Transformation)."""

    sources: tuple[Source, ...]
    joined: str = ""


@dataclass(frozen=True)
class KerasArray:
    """The Keras variable of a role, and the steps to it from PyTorch's layout."""

    name: str
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Part:
    """sizes: what must be equal on both sides, such as the shape of the weight in PyTorch's layout.

    arrays: by role, such as weight and bias. output: the path of the layer that returns this part's output; None where
    none does. flattened: see Layer. settings: what the two sides should have in common, such as epsilon.
    """

    kind: str
    path: str
    sizes: tuple[int, ...]
    arrays: Mapping[str, TorchArray | KerasArray]
    output: str | None = None
    flattened: tuple[int, ...] | None = None
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def signature(self) -> tuple[str, tuple[int, ...]]:
        """Parts that may be paired have the same one."""
        return self.kind, self.sizes


def names_of(array: TorchArray | KerasArray) -> list[str]:
    """The variables that fill a role."""
    return [source.name for source in array.sources] if isinstance(array, TorchArray) else [array.name]
