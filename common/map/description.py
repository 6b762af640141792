"""What a process of one framework says about a user's model, in neither framework's terms."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class VariableDescription:
    """A parameter or buffer of PyTorch, or a variable of Keras. Those that are not floats are left out."""

    name: str
    shape: tuple[int, ...]
    trainable: bool
    constant: bool = False  # a buffer that no layer of a known kind updates


@dataclass(frozen=True)
class LayerDescription:
    """A layer that has variables of its own. `kind` is the framework's class, such as Conv2d or Conv2D.

    variables: their names by role ("weight", "kernel"). flattened: the shape of an example before it was flattened to
    what this layer receives; None where it was not.
    """

    kind: str
    path: str
    attributes: Mapping[str, Any]
    variables: Mapping[str, str]
    flattened: tuple[int, ...] | None = None


@dataclass(frozen=True)
class DropoutDescription:
    """An ordinary dropout layer. name: its own side finds it by. flattened: as a LayerDescription's."""

    rate: float
    name: str
    flattened: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ModelDescription:
    """A model: its layers in the order in which one forward pass enters them, and all variables by name.

    unused: variables of layers that the forward pass does not enter. channels: whether inputs have channels, which
    PyTorch has as the second axis and Keras as the last. outputs: their shapes by name. statistics: BatchNorm's moving
    means and variances. dropouts: ordinary dropout layers by path, in the order of execution. noise:
    layers that draw random numbers in another way. files: those of the user's code.
    """

    layers: list[LayerDescription]
    variables: dict[str, VariableDescription]
    unused: list[str]
    channels: bool
    outputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    statistics: list[str] = field(default_factory=list)
    dropouts: dict[str, DropoutDescription] = field(default_factory=dict)
    noise: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class RecordedCall:
    """What a layer received and returned the first time that it was called: its first tensors, or None."""

    received: np.ndarray | None
    returned: np.ndarray | None


@dataclass(frozen=True)
class ComputedPass:
    """A forward pass and its gradients, float64.

    outputs: by name, also those that are no floats. calls: by the path of the layer, in the order in which they
    returned. gradients: of the sum of all outputs of floats, each multiplied by its projection, by the variable's name.
    updated: all variables after the pass.
    """

    outputs: dict[str, np.ndarray]
    calls: dict[str, RecordedCall]
    gradients: dict[str, np.ndarray] = field(default_factory=dict)
    updated: dict[str, np.ndarray] = field(default_factory=dict)
