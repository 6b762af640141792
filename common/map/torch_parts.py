"""PyTorch's layers as parts."""

from collections.abc import Callable, Iterator

from common.map.description import Description, Layer, Variable
from common.map.parts import Part, TorchArray
from common.map.transformations import Source

Variables = dict[str, Variable]
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
RECURRENT = {"LSTM": "LSTM", "GRU": "GRU", "RNN": "RNN", "LSTMCell": "LSTM", "GRUCell": "GRU", "RNNCell": "RNN"}
KINDS = {*SIMPLE, *RECURRENT, "MultiheadAttention"}  # all others are pairs of single parameters


def torch_parts(description: Description) -> list[Part]:
    """The parts in the order of execution. A variable that is tied belongs to the first part that has it."""
    found: list[Part] = []
    owned: set[str] = set()
    for layer in description.layers:
        mine = {role: name for role, name in layer.variables.items() if name not in owned}
        owned |= set(mine.values())
        for part in _convert(layer, mine, description.variables):
            found.append(part)
    return found


def _convert(layer: Layer, mine: dict[str, str], variables: Variables) -> Iterator[Part]:
    special: Callable[..., Iterator[Part]] | None = None
    if layer.kind in RECURRENT:
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
        arrays = {role: TorchArray((Source(name),)) for role, name in mine.items()}
        yield Part(kind, layer.path, sizes, arrays, layer.path, layer.flattened, layer.attributes)
        return
    for role, name in mine.items():
        if not variables[name].constant:
            yield Part("parameter", layer.path, variables[name].shape, {role: TorchArray((Source(name),))}, layer.path)


def _recurrent(layer: Layer, variables: Variables) -> Iterator[Part]:
    """A part for each layer and direction. LSTM and RNN have one bias on the other side: the sum of their two."""
    kind, names = RECURRENT[layer.kind], layer.variables
    suffixes = [role.removeprefix("weight_ih") for role in names if role.startswith("weight_ih")]
    for suffix in suffixes:
        arrays = {role: TorchArray((Source(names[f"{role}{suffix}"]),)) for role in ("weight_ih", "weight_hh")}
        if f"bias_ih{suffix}" in names:
            biases = Source(names[f"bias_ih{suffix}"]), Source(names[f"bias_hh{suffix}"])
            arrays["bias"] = TorchArray(biases, "," if kind == "GRU" else "+")
        sizes = variables[names[f"weight_ih{suffix}"]].shape
        output = layer.path if suffix == suffixes[-1] else None
        yield Part(kind, f"{layer.path}{suffix.replace('_', '.', 1)}", sizes, arrays, output)


def _attention(layer: Layer, variables: Variables) -> Iterator[Part]:
    """Query, key, value and output."""
    names = layer.variables
    for number, part in enumerate(("query", "key", "value")):
        width = variables[names["out_proj.weight"]].shape[0]
        rows = (number * width, (number + 1) * width)
        if "in_proj_weight" in names:
            weight = Source(names["in_proj_weight"], rows)
            sizes: tuple[int, ...] = (width, variables[weight.name].shape[1])
        else:
            weight = Source(names[f"{part[0]}_proj_weight"])
            sizes = variables[weight.name].shape
        arrays = {"weight": TorchArray((weight,))}
        if "in_proj_bias" in names:
            arrays["bias"] = TorchArray((Source(names["in_proj_bias"], rows),))
        yield Part("linear", f"{layer.path}.{part}", sizes, arrays)
    arrays = {
        role: TorchArray((Source(names[f"out_proj.{role}"]),))
        for role in ("weight", "bias")
        if f"out_proj.{role}" in names
    }
    sizes = variables[names["out_proj.weight"]].shape
    yield Part("linear", f"{layer.path}.output", sizes, arrays, layer.path)
