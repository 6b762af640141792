"""PyTorch's layers as parts."""

from collections.abc import Callable, Iterator

from common.map.description import LayerDescription, ModelDescription, VariableDescription
from common.map.sublayers import Sublayer, TorchSources
from common.map.transformation import SourceParameter

Variables = dict[str, VariableDescription]
# By PyTorch's class: the kind of the part, and the role that has the sizes.
SIMPLE = {
    "Linear": ("linear", "weight"),
    "Embedding": ("embedding", "weight"),
    "LayerNorm": ("layer norm", "weight"),
    "RMSNorm": ("RMS norm", "weight"),
    "GroupNorm": ("group norm", "weight"),
    "PReLU": ("PReLU", "weight"),
    **{f"BatchNorm{n}d": ("batch norm", "running_mean") for n in (1, 2, 3)},
    **{f"InstanceNorm{n}d": ("group norm", "weight") for n in (1, 2, 3)},
    **{f"Conv{n}d": ("convolution", "weight") for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": ("transposed convolution", "weight") for n in (1, 2, 3)},
}
RECURRENT_KINDS = {"LSTM": "LSTM", "GRU": "GRU", "RNN": "RNN", "LSTMCell": "LSTM", "GRUCell": "GRU", "RNNCell": "RNN"}
KNOWN_KINDS = {*SIMPLE, *RECURRENT_KINDS, "MultiheadAttention"}  # all others are pairs of single parameters


def split_torch_layers(description: ModelDescription) -> list[Sublayer]:
    """The parts in the order of execution. A variable that is tied belongs to the first part that has it."""
    found: list[Sublayer] = []
    owned: set[str] = set()
    for layer in description.layers:
        mine = {role: name for role, name in layer.variables.items() if name not in owned}
        owned |= set(mine.values())
        for part in _convert(layer, mine, description.variables):
            found.append(part)
    return found


def _convert(layer: LayerDescription, mine: dict[str, str], variables: Variables) -> Iterator[Sublayer]:
    special: Callable[..., Iterator[Sublayer]] | None = None
    if layer.kind in RECURRENT_KINDS:
        special = _recurrent
    elif layer.kind == "MultiheadAttention":
        special = _attention
    if special is not None and len(mine) == len(layer.variables):
        yield from special(layer, variables)
        return
    kind, main = SIMPLE.get(layer.kind, ("", ""))
    if main not in mine and "weight" in mine and kind == "batch norm":
        main = "weight"  # without running statistics
    if main in mine:
        sizes = variables[mine[main]].shape
        if kind.endswith("convolution"):
            sizes = (layer.attributes.get("groups", 1), *sizes)
        arrays = {role: TorchSources((SourceParameter(name),)) for role, name in mine.items()}
        yield Sublayer(kind, layer.path, sizes, arrays, layer.path, layer.flattened, layer.attributes)
        return
    for role, name in mine.items():
        if not variables[name].constant:
            yield Sublayer(
                "parameter",
                layer.path,
                variables[name].shape,
                {role: TorchSources((SourceParameter(name),))},
                layer.path,
            )


def _recurrent(layer: LayerDescription, variables: Variables) -> Iterator[Sublayer]:
    """A part for each layer and direction. LSTM and RNN have one bias on the other side: the sum of their two."""
    kind, names = RECURRENT_KINDS[layer.kind], layer.variables
    suffixes = [role.removeprefix("weight_ih") for role in names if role.startswith("weight_ih")]
    for suffix in suffixes:
        arrays = {
            role: TorchSources((SourceParameter(names[f"{role}{suffix}"]),)) for role in ("weight_ih", "weight_hh")
        }
        if f"bias_ih{suffix}" in names:
            biases = SourceParameter(names[f"bias_ih{suffix}"]), SourceParameter(names[f"bias_hh{suffix}"])
            arrays["bias"] = TorchSources(biases, "," if kind == "GRU" else "+")
        sizes = variables[names[f"weight_ih{suffix}"]].shape
        output = layer.path if suffix == suffixes[-1] else None
        yield Sublayer(kind, f"{layer.path}{suffix.replace('_', '.', 1)}", sizes, arrays, output)


def _attention(layer: LayerDescription, variables: Variables) -> Iterator[Sublayer]:
    """Query, key, value and output."""
    names = layer.variables
    for number, part in enumerate(("query", "key", "value")):
        width = variables[names["out_proj.weight"]].shape[0]
        rows = (number * width, (number + 1) * width)
        if "in_proj_weight" in names:
            weight = SourceParameter(names["in_proj_weight"], rows)
            sizes: tuple[int, ...] = (width, variables[weight.name].shape[1])
        else:
            weight = SourceParameter(names[f"{part[0]}_proj_weight"])
            sizes = variables[weight.name].shape
        arrays = {"weight": TorchSources((weight,))}
        if "in_proj_bias" in names:
            arrays["bias"] = TorchSources((SourceParameter(names["in_proj_bias"], rows),))
        yield Sublayer("linear", f"{layer.path}.{part}", sizes, arrays)
    arrays = {
        role: TorchSources((SourceParameter(names[f"out_proj.{role}"]),))
        for role in ("weight", "bias")
        if f"out_proj.{role}" in names
    }
    sizes = variables[names["out_proj.weight"]].shape
    yield Sublayer("linear", f"{layer.path}.output", sizes, arrays, layer.path)
