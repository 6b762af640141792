"""Descriptions of a user's model that a process without the model's framework can read.

A process of PyTorch or of Keras creates them and sends them, pickled, to the process that compares. The variables are
parameters and buffers in PyTorch. A role is the name of a variable within its layer, such as "weight" or "kernel".
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from common.map.noise import Noise

Arrays = dict[str, np.ndarray]  # arrays by the name of a variable, an input or an output
MOST_CALLS = 16  # the calls of a layer in a pass that are recorded if the layer was asked for


@dataclass(frozen=True)
class VariableDescription:
    """A parameter or buffer of PyTorch, or a variable of Keras.

    Only floating-point variables and those that training changes are described.
    """

    name: str
    shape: tuple[int, ...]
    trainable: bool
    is_constant: bool = False  # whether neither the optimizer nor a forward pass changes it, as with a mask


@dataclass(frozen=True)
class Connection:
    """Input of a layer.

    Attributes:
        received_sizes: The sizes of the axes of one example in ascending order, because the frameworks order axes
            differently.
        sources: The paths of the layers with variables from whose outputs other code computed the input.
    """

    received_sizes: tuple[int, ...]
    sources: frozenset[str] = frozenset()


@dataclass(frozen=True)
class LayerDescription:
    """A layer that owns variables.

    Attributes:
        kind: The name of the layer's class, such as Conv2d in PyTorch or Conv2D in Keras.
        path: The path of the layer in the model.
        attributes: Settings of the layer, such as epsilon, under names that both frameworks share.
        variables: The names of the variables by role.
        unflattened_shape: The sizes of the axes that the model merged to the last axis of the input, as all axes of
            an example; None: not flattened.
        composite: The path of the layer that contains this layer, such as Keras's MultiHeadAttention; or None.
        connection: The source of the layer's input; None if the pass did not return from the layer.
        attribute: The name of the attribute that holds the layer, if its path does not say it.
        reshaped_shape: The shape of one example after the model divided the features that the layer returned into
            several axes; None: not divided.
    """

    kind: str
    path: str
    attributes: Mapping[str, object]
    variables: Mapping[str, str]
    unflattened_shape: tuple[int, ...] | None = None
    composite: str | None = None
    connection: Connection | None = None
    attribute: str = ""
    reshaped_shape: tuple[int, ...] | None = None

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
        noise: The noise that the layer applies to its input.
        name: The name by which the layer's framework finds it again.
        calls: The number of times that a pass calls the layer, each time with other random numbers.
        unflattened_shape: The sizes of the axes that the model merged to the last axis of the input, as all axes of
            an example; None: not flattened.
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
        variables: All floating-point variables, and the `buffers` of other types, by name.
        unused: The names of variables that belong to no layer that the forward pass enters.
        has_channels: Whether an input has channels, which are PyTorch's second axis and Keras's last axis.
        outputs: The shapes of the outputs by name.
        probabilities: The names of the outputs that add up to 1 along an axis, as after a softmax.
        statistics: The names of BatchNorm's moving means and variances.
        norms_of_single_values: The paths of the BatchNorm layers that receive one value of each channel from an
            example.
        buffers: The variables besides `statistics` that forward passes in training mode change, by name. The value is
            whether the change depends on the examples.
        dropouts: The dropout and noise layers that can be aligned, by path, in the order of execution.
        unaligned_noise: The layers that draw random numbers in a way that cannot be aligned, by path.
        unsupported: A sentence for each part of the model that cannot be trained, such as a Keras regularizer.
        restricted: The trained variables that forward passes change in place if they lie outside a range, as a clamp
            does.
        mixing_layer: The first layer whose output for an example depends on the other examples of its batch, in
            evaluation mode; None if the outputs of the model do not.
        mixed_gradient: The first parameter whose gradient for a batch is not the sum of its gradients for the single
            examples, for example because of a hook; None if there is none, or if `mixing_layer` is set.
        is_keras: Whether the model of PyTorch's side is a Keras model, whose names and layouts are Keras's.
        is_keras_two: Whether it is a model of Keras 2 on TensorFlow's side.
        aliases: The first name of each tied variable of PyTorch by each of its other names.
    """

    layers: list[LayerDescription]
    variables: dict[str, VariableDescription]
    unused: list[str]
    has_channels: bool
    outputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    probabilities: list[str] = field(default_factory=list)
    statistics: list[str] = field(default_factory=list)
    norms_of_single_values: list[str] = field(default_factory=list)
    buffers: dict[str, bool] = field(default_factory=dict)
    dropouts: dict[str, DropoutDescription] = field(default_factory=dict)
    unaligned_noise: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    restricted: list[str] = field(default_factory=list)
    mixing_layer: str | None = None
    mixed_gradient: str | None = None
    is_keras: bool = False
    is_keras_two: bool = False
    aliases: dict[str, str] = field(default_factory=dict)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all variables by name."""
        return {name: variable.shape for name, variable in self.variables.items()}


def list_probabilities(outputs: Arrays) -> list[str]:
    """Return the names of the outputs that are at least 0 and add up to 1 along an axis other than that of examples."""
    return [
        name
        for name, values in outputs.items()
        if values.dtype.kind == "f"
        and (values >= 0).all()
        and any(size > 1 and np.allclose(values.sum(axis), 1) for axis, size in enumerate(values.shape) if axis)
    ]


@dataclass(frozen=True)
class RecordedCall:
    """The first tensor that a layer received in a call and the first that it returned, or None."""

    received: np.ndarray | None
    returned: np.ndarray | None


def name_call(path: str, count: int) -> str:
    """Return the path of a layer, and the number of its call if there were earlier calls. count: their number."""
    return f"{path} (call {count + 1})" if count else path


def drop_call_number(path: str) -> str:
    """Return the path of a layer without the number of the call, which `name_call` adds."""
    return re.sub(r" \(call \d+\)$", "", path)


@dataclass(frozen=True)
class GradientSummary:
    """Size and content of a gradient, which stays in the process that computed it.

    Attributes:
        norm: The norm, which is 0 only if all elements are 0.
        checksum: A checksum of the elements.
    """

    norm: float
    checksum: int


@dataclass(frozen=True)
class ComputedPass:
    """A forward pass in float64, with the results that the caller asked for.

    Gradients are computed of one scalar: the sum of all elements of the floating-point outputs, each times a random
    factor. The factors of an output are called its projection.

    Attributes:
        outputs: The outputs by name, including outputs of integers.
        received_shapes: The shape of the first tensor that a layer received in its first call, by path.
        calls: The calls of layers by path, in the order in which they returned.
        gradients: Summaries of the gradients of that scalar by the name of the variable.
        updated: All variables after the pass, by name.
        changed: The names of the variables that the pass changed.
    """

    outputs: Arrays
    received_shapes: dict[str, tuple[int, ...]]
    calls: dict[str, RecordedCall] = field(default_factory=dict)
    gradients: dict[str, GradientSummary] = field(default_factory=dict)
    updated: Arrays = field(default_factory=dict)
    changed: frozenset[str] = frozenset()


def list_received_shapes(calls: Mapping[str, RecordedCall]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays that layers received, by path."""
    return {path: call.received.shape for path, call in calls.items() if call.received is not None}


@dataclass(frozen=True)
class ObservedPass:
    """A forward pass in training mode.

    Attributes:
        calls: The calls of layers by path, in the order in which they returned.
        dropout_functions: The calls of dropout functions, which return their input unchanged during the pass, as
            "path (function)".
        changed: The new values of the variables that the pass changed, by name.
        has_drawn: Whether the pass drew random numbers.
    """

    calls: Mapping[str, RecordedCall]
    dropout_functions: Sequence[str]
    changed: Arrays
    has_drawn: bool
