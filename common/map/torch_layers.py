"""PyTorch's layers as sublayers: layers, or pieces of a layer, that can have a counterpart in a Keras model.

A role is the name of a variable within its layer, such as "weight". A source is a parameter, or some of its rows, that
fills a role of a sublayer.
"""

from collections.abc import Iterator
from dataclasses import replace

from common.map.description import LayerDescription, ModelDescription, VariableDescription
from common.map.sublayers import Sublayer, TorchSources, iterate_owned_variables
from common.map.transformation import SourceParameter, TransformationStep, transpose_kernel

Variables = dict[str, VariableDescription]
# For each class of PyTorch: the kind of the sublayer, and the role whose shape gives the sizes.
SIMPLE_KINDS = {
    "Linear": ("linear", "weight"),
    "Embedding": ("embedding", "weight"),
    "LayerNorm": ("layer norm", "weight"),
    "RMSNorm": ("RMS norm", "weight"),
    "GroupNorm": ("group norm", "weight"),
    "PReLU": ("PReLU", "weight"),
    **{f"BatchNorm{n}d": ("batch norm", "running_mean") for n in (1, 2, 3)},
    "SyncBatchNorm": ("batch norm", "running_mean"),
    **{f"InstanceNorm{n}d": ("group norm", "weight") for n in (1, 2, 3)},
    **{f"Conv{n}d": ("convolution", "weight") for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": ("transposed convolution", "weight") for n in (1, 2, 3)},
}
USUAL_ROLES = ("weight", "bias")  # of the trained parameters of these classes
RECURRENT_KINDS = {"LSTM": "LSTM", "GRU": "GRU", "RNN": "RNN", "LSTMCell": "LSTM", "GRUCell": "GRU", "RNNCell": "RNN"}
TRANSPOSED_LINEAR = "transformers.Conv1D"  # its weight is (inputs, outputs)
# Layers whose weight PyTorch may compute from other parameters, and the list of these parameters.
KERNEL_KINDS = {kind for kind in SIMPLE_KINDS if kind.startswith(("Linear", "Conv"))} | {"ParametrizationList"}
# Every parameter of a layer of another class becomes a sublayer.
KNOWN_KINDS = {*SIMPLE_KINDS, *RECURRENT_KINDS, "MultiheadAttention", TRANSPOSED_LINEAR}


def split_torch_layers(description: ModelDescription) -> list[Sublayer]:
    """Return the sublayers in the order of execution."""
    owned_variables = iterate_owned_variables(description)
    return [
        sublayer for layer, names in owned_variables for sublayer in _split_layer(layer, names, description.variables)
    ]


def _split_layer(layer: LayerDescription, names: dict[str, str], variables: Variables) -> Iterator[Sublayer]:
    """Yield the sublayers of a layer.

    Args:
        layer: The layer.
        names: The names of its variables by role, without those that an earlier layer shares.
        variables: The descriptions of all variables by name.
    """
    has_all_variables = len(names) == len(layer.variables)
    if layer.kind in RECURRENT_KINDS and has_all_variables:
        yield from _split_recurrent(layer, variables)
        return
    # A class of the script may have this name, too
    if layer.kind == "MultiheadAttention" and has_all_variables and "out_proj.weight" in names:
        yield from _split_attention(layer, variables)
        return
    if layer.kind == TRANSPOSED_LINEAR and "weight" in names:
        yield _build_transposed_linear(layer, names, variables)
        return
    kind, main_role = SIMPLE_KINDS.get(layer.kind, ("", ""))
    if kind == "batch norm" and main_role not in names and "weight" in names:
        main_role = "weight"  # the layer keeps no moving statistics
    if main_role in names:
        sizes = variables[names[main_role]].shape
        added = [role for role in names if role not in USUAL_ROLES and variables[names[role]].trainable]
        yield from (_build_added(layer, role, variables[names[role]]) for role in added)
        sources = {role: _build_source(name) for role, name in names.items() if role not in added}
        yield Sublayer(
            kind,
            layer.path,
            (layer.groups, *sizes) if kind.endswith("convolution") else sizes,
            sources,
            layer.path,
            unflattened_shape=layer.unflattened_shape,
            settings=layer.attributes,
            reshaped_shape=layer.reshaped_shape,
        )
        return
    if _is_linear({role: variables[name].shape for role, name in names.items()}):
        sources = {role: _build_source(name) for role, name in names.items()}
        yield Sublayer("linear", layer.path, variables[names["weight"]].shape, sources)
        return
    for role, name in names.items():
        if not variables[name].is_constant:
            yield _build_parameter(layer, role, variables[name])


def _build_added(layer: LayerDescription, role: str, variable: VariableDescription) -> Sublayer:
    """Return a parameter that a subclass adds, such as a matrix of LoRA, which has the layout of a linear layer."""
    kind = "linear" if len(variable.shape) == 2 else "parameter"
    role_of_kind = "weight" if kind == "linear" else role
    return Sublayer(kind, f"{layer.path}.{role}", variable.shape, {role_of_kind: _build_source(variable.name)})


def _build_parameter(layer: LayerDescription, role: str, variable: VariableDescription) -> Sublayer:
    """Return a single parameter of a layer."""
    sources, shape = _build_source(variable.name), variable.shape
    if layer.kind in KERNEL_KINDS and len(shape) > 1:
        sources, shape = _build_kernel_part(sources, shape)
    return Sublayer("parameter", layer.path, shape, {role: sources}, layer.path, settings=layer.attributes)


def _build_kernel_part(sources: TorchSources, shape: tuple[int, ...]) -> tuple[TorchSources, tuple[int, ...]]:
    """Return a parameter from which a layer computes its weight, in Keras's layout without axes of size 1.

    Weight norm, for example, computes the weight from a direction of the weight's shape and a length for each output.
    """
    step = transpose_kernel(len(shape))
    keras_shape = tuple(shape[axis] for axis in step.numbers)
    is_vector = keras_shape.count(1) == len(keras_shape) - 1
    sizes = tuple(size for size in keras_shape if size > 1) if is_vector else keras_shape
    steps = (step,) if sizes == keras_shape else (step, TransformationStep("reshape", sizes))
    return replace(sources, steps=(*sources.steps, *steps)), sizes


def _is_linear(shapes: dict[str, tuple[int, ...]]) -> bool:
    """Check whether a layer of another class has the variables of a linear layer with bias, by role.

    The router of a mixture of experts is such a layer. Its output need not be the product.
    """
    weight = shapes.get("weight", ())
    return shapes.keys() == {"weight", "bias"} and len(weight) == 2 and shapes["bias"] == weight[:1]


def _build_source(name: str, rows: tuple[int, int] | None = None) -> TorchSources:
    return TorchSources((SourceParameter(name, rows),))


def _build_transposed_linear(layer: LayerDescription, names: dict[str, str], variables: Variables) -> Sublayer:
    """Return a linear layer whose weight is (inputs, outputs)."""
    sources = {role: _build_source(name) for role, name in names.items()}
    sources["weight"] = replace(sources["weight"], steps=(TransformationStep("transpose", (1, 0)),))
    sizes, shape = variables[names["weight"]].shape[::-1], layer.unflattened_shape
    return Sublayer("linear", layer.path, sizes, sources, layer.path, unflattened_shape=shape)


def _split_recurrent(layer: LayerDescription, variables: Variables) -> Iterator[Sublayer]:
    """Yield a sublayer for each layer and direction of a recurrent layer.

    Keras's LSTM and RNN have one bias, the sum of PyTorch's two. Keras's GRU has both biases, stacked.
    """
    kind, names = RECURRENT_KINDS[layer.kind], layer.variables
    # The suffix of a role has the layer and the direction, such as _l0 and _l0_reverse.
    suffixes = [role.removeprefix("weight_ih") for role in names if role.startswith("weight_ih")]
    for suffix in suffixes:
        sources = {role: _build_source(names[f"{role}{suffix}"]) for role in ("weight_ih", "weight_hh")}
        if f"bias_ih{suffix}" in names:
            biases = SourceParameter(names[f"bias_ih{suffix}"]), SourceParameter(names[f"bias_hh{suffix}"])
            sources["bias"] = TorchSources(biases, "," if kind == "GRU" else "+")
        sizes = variables[names[f"weight_ih{suffix}"]].shape
        output = layer.path if suffix == suffixes[-1] else None
        path = f"{layer.path}{suffix.replace('_', '.', 1)}"
        shape = layer.unflattened_shape if suffix.startswith("_l0") else None
        yield Sublayer(kind, path, sizes, sources, output, layer.path, shape, layer.attributes)


def _split_attention(layer: LayerDescription, variables: Variables) -> Iterator[Sublayer]:
    """Yield the projections of query, key and value, and the output projection of a MultiheadAttention.

    The three projections are rows of one parameter, in_proj_weight, or parameters of their own, such as q_proj_weight.
    """
    names = layer.variables
    output_sizes = variables[names["out_proj.weight"]].shape
    width = output_sizes[0]
    for number, projection in enumerate(("query", "key", "value")):
        rows = (number * width, (number + 1) * width)
        if "in_proj_weight" in names:
            sizes: tuple[int, ...] = (width, variables[names["in_proj_weight"]].shape[1])
            sources = {"weight": _build_source(names["in_proj_weight"], rows)}
        else:
            weight = names[f"{projection[0]}_proj_weight"]
            sizes, sources = variables[weight].shape, {"weight": _build_source(weight)}
        if "in_proj_bias" in names:
            sources["bias"] = _build_source(names["in_proj_bias"], rows)
        yield Sublayer("linear", f"{layer.path}.{projection}", sizes, sources, composite=layer.path)
    roles = [role for role in ("weight", "bias") if f"out_proj.{role}" in names]
    sources = {role: _build_source(names[f"out_proj.{role}"]) for role in roles}
    yield Sublayer("linear", f"{layer.path}.output", output_sizes, sources, layer.path, composite=layer.path)
