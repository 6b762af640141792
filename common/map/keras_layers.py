"""Keras's layers as sublayers: layers, or pieces of a layer, that can have a counterpart in a PyTorch model.

A sublayer has the kind, the sizes and the roles of its variables ("weight", "bias") as PyTorch has them. A target names
the Keras variable of a role, and the steps that transform PyTorch's array to it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from common.map.description import LayerDescription, ModelDescription, VariableDescription
from common.map.sublayers import KerasTarget, Sublayer, iterate_owned_variables
from common.map.transformation import TransformationStep, transpose_kernel

Variables = dict[str, VariableDescription]
Shape = tuple[int, ...]
Steps = tuple[TransformationStep, ...]
Targets = dict[str, KerasTarget]
# For each class of Keras: the kind of the sublayer, the role whose shape gives the sizes, and PyTorch's names of roles.
SIMPLE_KINDS = {
    "LayerNormalization": ("layer norm", "gamma", {"gamma": "weight", "beta": "bias"}),
    "RMSNormalization": ("RMS norm", "scale", {"scale": "weight"}),
    "GroupNormalization": ("group norm", "gamma", {"gamma": "weight", "beta": "bias"}),
    "BatchNormalization": (
        "batch norm",
        "moving_mean",
        {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"},
    ),
    "Embedding": ("embedding", "embeddings", {"embeddings": "weight"}),
    "keras_hub.PositionEmbedding": ("embedding", "embeddings", {"embeddings": "weight"}),
}
RECURRENT_KINDS = {
    "LSTM": "LSTM",
    "GRU": "GRU",
    "SimpleRNN": "RNN",
    "LSTMCell": "LSTM",
    "GRUCell": "GRU",
    "SimpleRNNCell": "RNN",
}
TRANSPOSED_CONVOLUTIONS = {f"Conv{n}DTranspose" for n in (1, 2, 3)}
CONVOLUTIONS = {f"Conv{n}D" for n in (1, 2, 3)} | {
    f"{kind}{n}D" for n in (1, 2) for kind in ("DepthwiseConv", "SeparableConv")
}
# Every variable of a layer of another class becomes a sublayer.
KNOWN_KINDS = {
    *SIMPLE_KINDS,
    *RECURRENT_KINDS,
    *CONVOLUTIONS,
    *TRANSPOSED_CONVOLUTIONS,
    "Dense",
    "EinsumDense",
    "PReLU",
}
# PyTorch's gates in Keras's order: a GRU has r, z, n in PyTorch and z, r, h in Keras. An LSTM's order is the same.
GATE_ORDERS = {"GRU": (1, 0, 2)}


@dataclass(frozen=True)
class _Piece:
    """The kind, the sizes and the variables of a sublayer, before it gets the path of its layer."""

    kind: str
    sizes: Shape
    targets: Targets


def split_keras_layers(description: ModelDescription) -> list[Sublayer]:
    """Return the sublayers in the order of execution."""
    owned_variables = iterate_owned_variables(description)
    return [
        sublayer for layer, names in owned_variables for sublayer in _split_layer(layer, names, description.variables)
    ]


def _split_layer(layer: LayerDescription, names: dict[str, str], variables: Variables) -> Iterator[Sublayer]:
    """Yield the sublayers of a layer, and one for each variable that training changes and that belongs to none of them.

    Args:
        layer: The layer.
        names: The names of its variables by Keras's role, without those that an earlier layer shares.
        variables: The descriptions of all variables by name.
    """
    shapes = {role: variables[name].shape for role, name in names.items()}
    pieces = _split_known_kind(layer, names, shapes)
    for piece in pieces:
        yield Sublayer(
            piece.kind,
            layer.path,
            piece.sizes,
            piece.targets,
            layer.path,
            layer.composite if len(pieces) == 1 else layer.path,
            layer.unflattened_shape,
            layer.attributes,
            layer.reshaped_shape,
        )
    used = {target.name for piece in pieces for target in piece.targets.values()}
    for role, name in names.items():
        if name not in used and not variables[name].is_constant:
            targets, settings = {role: KerasTarget(name)}, layer.attributes
            yield Sublayer("parameter", layer.path, shapes[role], targets, layer.path, settings=settings)


def _split_known_kind(layer: LayerDescription, names: dict[str, str], shapes: dict[str, Shape]) -> list[_Piece]:
    """Return the pieces of a layer; empty for an unknown kind, or if an earlier layer owns the main variable."""
    kind = layer.kind
    if kind in SIMPLE_KINDS:
        shared_kind, main_role, torch_roles = SIMPLE_KINDS[kind]
        if main_role not in names:
            return []
        targets = {torch_roles[role]: KerasTarget(name) for role, name in names.items() if role in torch_roles}
        return [_Piece(shared_kind, shapes[main_role], targets)]
    if kind in ("Dense", "EinsumDense") and "kernel" in names:
        return [_build_linear(layer, names, shapes)]
    if kind in RECURRENT_KINDS and {"kernel", "recurrent_kernel"} <= names.keys():
        return [_build_recurrent(layer, names, shapes)]
    if kind == "PReLU" and "alpha" in names:
        targets = {"weight": _build_reshaped(names["alpha"], shapes["alpha"])}
        return [_Piece("PReLU", (math.prod(shapes["alpha"]),), targets)]
    if kind in TRANSPOSED_CONVOLUTIONS and "kernel" in names:
        *window, outputs, inputs = shapes["kernel"]
        targets = _build_targets(names, names["kernel"], (transpose_kernel(2 + len(window)),))
        return [_Piece("transposed convolution", (layer.groups, inputs, outputs, *window), targets)]
    if kind in CONVOLUTIONS and {"kernel", "depthwise_kernel"} & names.keys():
        return _split_convolution(layer, names, shapes)
    return []


def _build_linear(layer: LayerDescription, names: dict[str, str], shapes: dict[str, Shape]) -> _Piece:
    """Return a linear layer. PyTorch's weight is (outputs, inputs); EinsumDense may split either into several axes."""
    equation = str(layer.attributes.get("equation", "ab,bc->ac"))
    input_axes, kernel_axes, output_axes = equation.replace("...", "").replace("->", ",").split(",")
    inputs = [axis for axis in input_axes if axis in kernel_axes]
    outputs = [axis for axis in output_axes if axis in kernel_axes]
    torch_axes = [*outputs, *inputs]
    if sorted(torch_axes) != sorted(kernel_axes):  # the input and the output share an axis: no product of matrices
        return _Piece("parameter", shapes["kernel"], {"weight": KerasTarget(names["kernel"])})
    sizes = dict(zip(kernel_axes, shapes["kernel"], strict=True))
    torch_shape = (math.prod(sizes[axis] for axis in outputs), math.prod(sizes[axis] for axis in inputs))
    transpose = TransformationStep("transpose", tuple(torch_axes.index(axis) for axis in kernel_axes))
    steps: Steps = (transpose,)
    if len(torch_axes) > 2:
        steps = (TransformationStep("reshape", tuple(sizes[axis] for axis in torch_axes)), transpose)
    return _Piece("linear", torch_shape, _build_targets(names, names["kernel"], steps, shapes.get("bias")))


def _build_recurrent(layer: LayerDescription, names: dict[str, str], shapes: dict[str, Shape]) -> _Piece:
    """Return a recurrent layer. PyTorch's weights are (gates * units, inputs), with the gates in PyTorch's order."""
    kind = RECURRENT_KINDS[layer.kind]
    order = GATE_ORDERS.get(kind)
    steps: Steps = (TransformationStep("transpose", (1, 0)),)
    if order:
        steps = (TransformationStep("blocks", order), *steps)
    targets = {
        "weight_ih": KerasTarget(names["kernel"], steps),
        "weight_hh": KerasTarget(names["recurrent_kernel"], steps),
    }
    if "bias" in names:
        targets["bias"] = KerasTarget(names["bias"], (TransformationStep("blocks", order, 1),) if order else ())
    if kind == "GRU" and not layer.attributes.get("reset_after"):
        kind = "GRU with reset_after=False"  # PyTorch has no such GRU
    return _Piece(kind, shapes["kernel"][::-1], targets)


def _split_convolution(layer: LayerDescription, names: dict[str, str], shapes: dict[str, Shape]) -> list[_Piece]:
    """Return a convolution, whose weight is (outputs, inputs of a group, *window) in PyTorch.

    A separable convolution is two: a depthwise one and a pointwise one.
    """
    if "Depthwise" not in layer.kind and "kernel" in names:
        *window, inputs, outputs = shapes["kernel"]
        targets = _build_targets(names, names["kernel"], (transpose_kernel(2 + len(window)),))
        return [_Piece("convolution", (layer.groups, outputs, inputs, *window), targets)]
    role = "kernel" if "kernel" in names else "depthwise_kernel"
    *window, channels, multiplier = shapes[role]
    axes = tuple(range(2, 2 + len(window)))
    steps = (
        TransformationStep("reshape", (channels, multiplier, *window)),
        TransformationStep("transpose", (*axes, 0, 1)),
    )
    sizes = (channels, channels * multiplier, 1, *window)
    if "pointwise_kernel" not in names:
        return [_Piece("convolution", sizes, _build_targets(names, names[role], steps))]
    *window, inputs, outputs = shapes["pointwise_kernel"]
    pointwise = _build_targets(names, names["pointwise_kernel"], (transpose_kernel(2 + len(window)),))
    return [
        _Piece("convolution", sizes, {"weight": KerasTarget(names[role], steps)}),
        _Piece("convolution", (1, outputs, inputs, *window), pointwise),
    ]


def _build_reshaped(name: str, shape: Shape) -> KerasTarget:
    """Return the target of an array that PyTorch has with a single axis."""
    return KerasTarget(name, (TransformationStep("reshape", shape),) if len(shape) > 1 else ())


def _build_targets(names: dict[str, str], weight: str, steps: Steps, bias_shape: Shape | None = None) -> Targets:
    """Return the targets of weight and bias. `bias_shape` is None if the bias has a single axis, as in PyTorch."""
    targets = {"weight": KerasTarget(weight, steps)}
    if "bias" in names:
        targets["bias"] = _build_reshaped(names["bias"], bias_shape or (0,))
    return targets
