"""Sublayers: the pieces of a layer that have the same variables in both frameworks.

Most layers are one sublayer. A multi-head attention consists of four: the projections of query, key and value, and the
output. An LSTM of two layers consists of two. A role is the name of a variable within a sublayer, such as "weight";
both frameworks' sublayers use PyTorch's roles.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from common.map.description import LayerDescription, ModelDescription
from common.map.transformation import SourceParameter, TransformationStep


@dataclass(frozen=True)
class TorchSources:
    """The PyTorch parameters that fill a role, such as weight.

    Attributes:
        sources: The parameters.
        joined: The operation on the sources: "" for a single source, "+" for their sum, "," for a stack along a new
            axis.
        steps: The steps to the layout that the role has in most layers of PyTorch, such as (outputs, inputs).
    """

    sources: tuple[SourceParameter, ...]
    joined: str = ""
    steps: tuple[TransformationStep, ...] = ()


@dataclass(frozen=True)
class KerasTarget:
    """The Keras variable that fills a role, and the steps that transform PyTorch's array to it."""

    name: str
    steps: tuple[TransformationStep, ...] = ()


@dataclass(frozen=True)
class Sublayer:
    """A layer, or a piece of a layer, that can have a counterpart in the other framework.

    Attributes:
        kind: The kind of layer under a name that both frameworks share, such as "linear" or "batch norm".
        path: The path of the layer, followed by the name of the piece.
        sizes: The sizes that must be equal on both sides, such as the shape of the weight in PyTorch's layout.
        variables: The variables by role: `TorchSources` in a PyTorch model, `KerasTarget` in a Keras model.
        output: The path of the layer that returns the output of this sublayer; None if no layer does.
        composite: The path of the layer that computes this sublayer together with others; None: no such layer.
        unflattened_shape: The sizes of the axes that the model merged to the last axis of the input, as all axes of
            an example; None: not flattened.
        reshaped_shape: The shape of one example after the model divided the features that the layer returned into
            several axes; None: not divided.
        settings: Settings that should be equal on both sides, such as epsilon.
    """

    kind: str
    path: str
    sizes: tuple[int, ...]
    variables: Mapping[str, TorchSources | KerasTarget]
    output: str | None = None
    composite: str | None = None
    unflattened_shape: tuple[int, ...] | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    reshaped_shape: tuple[int, ...] | None = None

    @property
    def signature(self) -> tuple[str, tuple[int, ...]]:
        """The kind and the sizes. Sublayers of equal signatures can be counterparts."""
        return self.kind, self.sizes

    @property
    def is_recorded(self) -> bool:
        """Return whether a forward pass records the input and the output of this sublayer alone."""
        return self.output == self.path != self.composite

    @property
    def variable_names(self) -> list[str]:
        """The names of all variables."""
        names = (name for variable in self.variables.values() for name in list_variable_names(variable))
        return list(dict.fromkeys(names))


class LayerPair(NamedTuple):
    """A sublayer of PyTorch and its counterpart in Keras."""

    torch: Sublayer
    keras: Sublayer

    def __str__(self) -> str:
        """Return the paths of both."""
        return f"{self.torch.path} (PyTorch) and {self.keras.path} (Keras)"


def name_pairs(layer_pairs: Sequence[LayerPair]) -> str:
    """Return a text that names the first pair and counts the others."""
    more = len(layer_pairs) - 1
    return f"{layer_pairs[0]} and {more} more" if more else str(layer_pairs[0])


def list_variable_names(variable: TorchSources | KerasTarget) -> list[str]:
    """Return the names of the variables that fill a role."""
    return [source.name for source in variable.sources] if isinstance(variable, TorchSources) else [variable.name]


def iterate_owned_variables(description: ModelDescription) -> Iterator[tuple[LayerDescription, dict[str, str]]]:
    """Yield the layers in the order of execution, with the names of their variables by role.

    A variable that several layers share (tied layers) is yielded with the first of them only.
    """
    owned: set[str] = set()
    for layer in description.layers:
        names = {role: name for role, name in layer.variables.items() if name not in owned}
        owned |= set(names.values())
        yield layer, names
