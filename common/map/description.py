"""Descriptions of a user's model that a process without the model's framework can read.

A process of PyTorch or of Keras creates them. The variables are parameters and buffers in PyTorch. A role is the name
of a variable within its layer, such as "weight" or "kernel".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from common.map.noise import Noise

Arrays = dict[str, np.ndarray]  # by the name of the variable, input or output


@dataclass(frozen=True)
class VariableDescription:
    """A floating-point parameter or buffer of PyTorch, or a floating-point variable of Keras."""

    name: str
    shape: tuple[int, ...]
    trainable: bool
    constant: bool = False  # whether it is a PyTorch buffer that no layer of a known kind updates, such as a mask


@dataclass(frozen=True)
class LayerDescription:
    """A layer that owns variables.

    Attributes:
        kind: The name of the layer's class, such as Conv2d in PyTorch or Conv2D in Keras.
        path: The path of the layer in the model.
        attributes: Settings of the layer, such as epsilon, under names that both frameworks share.
        variables: The names of the variables by role.
        unflattened_shape: The shape of one example before the model flattened it for the layer; None if it did not.
        composite: The path of the layer that contains this one as a part, such as Keras's MultiHeadAttention; or None.
    """

    kind: str
    path: str
    attributes: Mapping[str, object]
    variables: Mapping[str, str]
    unflattened_shape: tuple[int, ...] | None = None
    composite: str | None = None

    @property
    def groups(self) -> int:
        """The number of groups of a convolution."""
        groups = self.attributes.get("groups", 1)
        assert isinstance(groups, int)
        return groups


@dataclass(frozen=True)
class DropoutDescription:
    """A dropout or noise layer that can be aligned: made to draw the same random numbers in both frameworks.

    Attributes:
        noise: What the layer does to its input.
        name: The name by which the layer's framework finds it again.
        calls: The number of times that a pass calls the layer, each time with other random numbers.
        unflattened_shape: The shape of one example before the model flattened it for the layer; None if it did not.
    """

    noise: Noise
    name: str
    calls: int = 1
    unflattened_shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ModelDescription:
    """A model: its layers, variables, outputs and dropout.

    Attributes:
        layers: The layers that own variables, in the order in which a forward pass enters them.
        variables: All floating-point variables by name.
        unused: The names of variables that belong to no layer that the forward pass enters.
        channels: Whether an input has channels, which are PyTorch's second axis and Keras's last axis.
        outputs: The shapes of the outputs by name.
        statistics: The names of BatchNorm's moving means and variances.
        dropouts: The dropout and noise layers that can be aligned, by path, in the order of execution.
        noise: The layers that draw random numbers in a way that cannot be aligned, by path.
        unsupported: A sentence for each part of the model that cannot be trained, such as a Keras regularizer.
        mixing_layer: The first layer whose output for an example depends on the other examples of its batch, in
            evaluation mode; None if the outputs of the model do not.
    """

    layers: list[LayerDescription]
    variables: dict[str, VariableDescription]
    unused: list[str]
    channels: bool
    outputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    statistics: list[str] = field(default_factory=list)
    dropouts: dict[str, DropoutDescription] = field(default_factory=dict)
    noise: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    mixing_layer: str | None = None


@dataclass(frozen=True)
class RecordedCall:
    """The first tensor that a layer received in its first call and the first that it returned, or None."""

    received: np.ndarray | None
    returned: np.ndarray | None


@dataclass(frozen=True)
class ComputedPass:
    """A forward pass in float64, and what was asked for about it afterwards.

    A gradient needs a scalar. It is the sum over all elements of the floating-point outputs, each of which is
    multiplied by a random factor. The factors of an output are its projection.

    Attributes:
        outputs: The outputs by name, including outputs of integers.
        received_shapes: The shape of the first tensor that a layer received in its first call, by path.
        calls: The calls of layers by path, in the order in which they returned.
        gradients: The gradients of that scalar by the name of the variable.
        updated: All variables after the pass, by name.
    """

    outputs: Arrays
    received_shapes: dict[str, tuple[int, ...]]
    calls: dict[str, RecordedCall] = field(default_factory=dict)
    gradients: Arrays = field(default_factory=dict)
    updated: Arrays = field(default_factory=dict)


def list_received_shapes(calls: Mapping[str, RecordedCall]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what layers received, by path."""
    return {path: call.received.shape for path, call in calls.items() if call.received is not None}
