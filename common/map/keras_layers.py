"""Keras's layers as parts, whose arrays are in PyTorch's layout."""

import math
from collections.abc import Iterator

from common.map.description import LayerDescription, ModelDescription, VariableDescription
from common.map.sublayers import KerasTarget, Sublayer
from common.map.transformation import TransformationStep

Variables = dict[str, VariableDescription]
Shape = tuple[int, ...]
# By Keras's class: the kind of the part, the role that has the sizes, PyTorch's roles of Keras's.
NORMS = {
    "LayerNormalization": ("layer norm", "gamma", {"gamma": "weight", "beta": "bias"}),
    "RMSNormalization": ("RMS norm", "scale", {"scale": "weight"}),
    "GroupNormalization": ("group norm", "gamma", {"gamma": "weight", "beta": "bias"}),
    "BatchNormalization": (
        "batch norm",
        "moving_mean",
        {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"},
    ),
    "Embedding": ("embedding", "embeddings", {"embeddings": "weight"}),
}
RECURRENT_KINDS = {
    "LSTM": "LSTM",
    "GRU": "GRU",
    "SimpleRNN": "RNN",
    "LSTMCell": "LSTM",
    "GRUCell": "GRU",
    "SimpleRNNCell": "RNN",
}
CONVOLUTIONS = {
    f"{kind}{n}D" for n in (1, 2, 3) for kind in ("Conv", "DepthwiseConv", "SeparableConv") if n < 3 or kind == "Conv"
} | {f"Conv{n}DTranspose" for n in (1, 2, 3)}
KNOWN_KINDS = {
    *NORMS,
    *RECURRENT_KINDS,
    *CONVOLUTIONS,
    "Dense",
    "EinsumDense",
    "PReLU",
}  # all others are pairs of single variables
GATES = {"GRU": (1, 0, 2)}  # of PyTorch's r, z, n: Keras has z, r, h. Those of an LSTM are in the same order


def split_keras_layers(description: ModelDescription) -> list[Sublayer]:
    """The parts in the order of execution. A variable that is tied belongs to the first part that has it."""
    found: list[Sublayer] = []
    owned: set[str] = set()
    for layer in description.layers:
        mine = {role: name for role, name in layer.variables.items() if name not in owned}
        owned |= set(mine.values())
        found += _convert(layer, mine, description.variables)
    return found


def _convert(layer: LayerDescription, mine: dict[str, str], variables: Variables) -> Iterator[Sublayer]:
    shapes = {role: variables[name].shape for role, name in mine.items()}
    made = _known(layer, mine, shapes)
    rest = dict(mine)
    for kind, sizes, arrays in made:
        output = layer.attributes.get("output", layer.path)
        yield Sublayer(kind, layer.path, sizes, arrays, output, layer.flattened, layer.attributes)
        rest = {role: name for role, name in rest.items() if name not in {array.name for array in arrays.values()}}
    for role, name in rest.items():
        if variables[name].trainable:
            yield Sublayer("parameter", layer.path, shapes[role], {role: KerasTarget(name)}, layer.path)


def _known(
    layer: LayerDescription, names: dict[str, str], shapes: dict[str, Shape]
) -> list[tuple[str, Shape, dict[str, KerasTarget]]]:
    """The kind, sizes and arrays of the layer's parts; none of a kind that is not known."""
    kind = layer.kind
    if kind in NORMS and NORMS[kind][1] in names:
        part, main, roles = NORMS[kind]
        return [(part, shapes[main], {roles[role]: KerasTarget(name) for role, name in names.items() if role in roles})]
    if kind == "BatchNormalization":  # without a moving mean, which another layer owns
        return []
    if kind in ("Dense", "EinsumDense") and "kernel" in names:
        return [_linear(layer, names, shapes)]
    if kind in RECURRENT_KINDS and {"kernel", "recurrent_kernel"} <= names.keys():
        return [_recurrent(layer, names, shapes)]
    if kind == "PReLU" and "alpha" in names:
        return [("PReLU", (math.prod(shapes["alpha"]),), {"weight": _reshaped(names["alpha"], shapes["alpha"])})]
    if kind in CONVOLUTIONS and kind.endswith("Transpose") and "kernel" in names:
        *window, outputs, inputs = shapes["kernel"]
        sizes = (layer.attributes.get("groups", 1), inputs, outputs, *window)
        return [("transposed convolution", sizes, _with_bias(names, names["kernel"], _turned(len(window))))]
    if kind in CONVOLUTIONS and {"kernel", "depthwise_kernel"} & names.keys():
        return _convolution(layer, names, shapes)
    return []


def _linear(
    layer: LayerDescription, names: dict[str, str], shapes: dict[str, Shape]
) -> tuple[str, Shape, dict[str, KerasTarget]]:
    """The weight is (outputs, inputs); EinsumDense splits either into several axes, in the order of its equation."""
    equation = layer.attributes.get("equation", "ab,bc->ac")
    received, kernel, returned = equation.replace("...", "").replace("->", ",").split(",")
    inputs, outputs = ([axis for axis in of if axis in kernel] for of in (received, returned))
    size = dict(zip(kernel, shapes["kernel"], strict=True))
    split = [*outputs, *inputs]
    if sorted(split) != sorted(kernel):  # an axis of both, which is no matrix product of two axes
        return "parameter", shapes["kernel"], {"weight": KerasTarget(names["kernel"])}
    sizes = (math.prod(size[axis] for axis in outputs), math.prod(size[axis] for axis in inputs))
    steps = [TransformationStep("reshape", tuple(size[axis] for axis in split))] if len(split) > 2 else []
    steps.append(TransformationStep("transpose", tuple(split.index(axis) for axis in kernel)))
    return "linear", sizes, _with_bias(names, names["kernel"], tuple(steps), shapes.get("bias"))


def _recurrent(
    layer: LayerDescription, names: dict[str, str], shapes: dict[str, Shape]
) -> tuple[str, Shape, dict[str, KerasTarget]]:
    kind = RECURRENT_KINDS[layer.kind]
    order = GATES.get(kind)
    steps = (*([TransformationStep("blocks", order)] if order else []), TransformationStep("transpose", (1, 0)))
    arrays = {
        "weight_ih": KerasTarget(names["kernel"], steps),
        "weight_hh": KerasTarget(names["recurrent_kernel"], steps),
    }
    if "bias" in names:
        arrays["bias"] = KerasTarget(names["bias"], (TransformationStep("blocks", order, 1),) if order else ())
    if kind == "GRU" and not layer.attributes.get("reset_after"):
        kind = "GRU with reset_after=False"
    return kind, shapes["kernel"][::-1], arrays


def _convolution(
    layer: LayerDescription, names: dict[str, str], shapes: dict[str, Shape]
) -> list[tuple[str, Shape, dict[str, KerasTarget]]]:
    """PyTorch has (outputs, inputs of a group, *window); a separable convolution is two."""
    if "Depthwise" not in layer.kind and "kernel" in names:
        *window, inputs, outputs = shapes["kernel"]
        sizes = (layer.attributes.get("groups", 1), outputs, inputs, *window)
        return [("convolution", sizes, _with_bias(names, names["kernel"], _turned(len(window))))]
    role = "kernel" if "kernel" in names else "depthwise_kernel"
    *window, channels, multiplier = shapes[role]
    axes = tuple(range(2, 2 + len(window)))
    steps = (
        TransformationStep("reshape", (channels, multiplier, *window)),
        TransformationStep("transpose", (*axes, 0, 1)),
    )
    sizes = (channels, channels * multiplier, 1, *window)
    if "pointwise_kernel" not in names:
        return [("convolution", sizes, _with_bias(names, names[role], steps))]
    *window, inputs, outputs = shapes["pointwise_kernel"]
    pointwise = _with_bias(names, names["pointwise_kernel"], _turned(len(window)))
    depthwise = {"weight": KerasTarget(names[role], steps)}
    return [("convolution", sizes, depthwise), ("convolution", (1, outputs, inputs, *window), pointwise)]


def _turned(window: int) -> tuple[TransformationStep, ...]:
    return (TransformationStep("transpose", (*range(2, 2 + window), 1, 0)),)


def _reshaped(name: str, shape: Shape) -> KerasTarget:
    return KerasTarget(name, (TransformationStep("reshape", shape),) if len(shape) > 1 else ())


def _with_bias(
    names: dict[str, str], weight: str, steps: tuple[TransformationStep, ...], bias: Shape | None = None
) -> dict[str, KerasTarget]:
    """bias: the shape of a bias that has several axes."""
    arrays = {"weight": KerasTarget(weight, steps)}
    if "bias" in names:
        arrays["bias"] = _reshaped(names["bias"], bias or (0,))
    return arrays
