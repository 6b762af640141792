"""Alignment of fused projections: one linear layer on one side, two or three layers on the other.

Attention may fuse the projections of query, key and value. A gated feed-forward network may fuse gate and value.
PyTorch's sublayers (layers, or pieces of a layer that can be paired with Keras's) are split or joined to match Keras's.
The size of a linear layer is the shape of its weight in PyTorch, (outputs, inputs).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import groupby, product

from common.map.sublayers import KerasTarget, Sublayer, TorchSources
from common.map.transformation import SourceParameter, TransformationStep

NAMES = {2: ("gate", "value"), 3: ("query", "key", "value")}  # names of the projections, by how many there are
MAX_CHOICES = 1_000  # largest number of choices of the layers to split that are compared
Sizes = tuple[int, ...]
Group = tuple[Sizes, str]  # the size of layers, and their name within their parents, which may be empty


def align_fused_projections(
    torch_sublayers: list[Sublayer],
    keras_sublayers: list[Sublayer],
    by_head: bool = False,
    is_gate_last: bool = False,
) -> list[Sublayer]:
    """Split or join PyTorch's projections so that both models have equal numbers of linear layers of each size.

    Args:
        torch_sublayers: PyTorch's sublayers.
        keras_sublayers: Keras's sublayers.
        by_head: Whether a fused layer outputs query, key and value of the first head, then query, key and value of the
            second head, and so on. Otherwise it outputs the queries of all heads first.
        is_gate_last: Whether Keras computes the gate of a gated feed-forward network after its value.
    """
    torch_sublayers = _join_separate_layers(torch_sublayers, keras_sublayers)
    torch_counts, keras_counts = Counter(_list_sizes(torch_sublayers)), Counter(_list_sizes(keras_sublayers))
    heads = _count_heads(keras_sublayers) if by_head else {}
    fused_outputs = _choose_outputs(torch_sublayers, _list_sizes(keras_sublayers))
    aligned = []
    # A group is the pieces of one fused parameter, or a single sublayer.
    for _, group in groupby(torch_sublayers, lambda sublayer: _get_fused_parameter(sublayer) or id(sublayer)):
        sublayers = list(group)
        size = sublayers[0].sizes
        fused_size = (3 * size[0], *size[1:]) if size else ()  # a parameter may be a single number
        surplus = torch_counts[size] - keras_counts[size]
        if len(sublayers) == 3 and not torch_counts[fused_size] and 0 < 3 * keras_counts[fused_size] == surplus:
            aligned.append(_join(sublayers, fused_size))
        elif (
            len(sublayers) == 1
            and sublayers[0].kind == "linear"
            and (outputs := fused_outputs.get((size, "")) or fused_outputs.get(_name_group(sublayers[0])))
        ):
            groups = heads.get((outputs[0], size[1]), 1)
            has_equal_parts = all(number % groups == 0 for number in outputs)
            pieces = _split(sublayers[0], outputs, groups if has_equal_parts else 1)
            aligned += pieces[::-1] if is_gate_last and len(pieces) == 2 else pieces
        else:
            aligned += sublayers
    return aligned


def _join_separate_layers(torch_sublayers: list[Sublayer], keras_sublayers: list[Sublayer]) -> list[Sublayer]:
    """Join PyTorch's layers of query, key and value if Keras has fused layers in their place."""
    torch_counts, keras_counts = Counter(_list_sizes(torch_sublayers)), Counter(_list_sizes(keras_sublayers))
    separate_sizes = set()
    for size in torch_counts:
        fused_size = (3 * size[0], size[1])
        fused_count = keras_counts[fused_size] - torch_counts[fused_size]
        if 0 < 3 * fused_count == torch_counts[size] - keras_counts[size]:
            separate_sizes.add(size)
    joined: list[Sublayer] = []
    start = 0
    while start < len(torch_sublayers):
        layers = torch_sublayers[start : start + 3]
        is_separate = layers[0].kind == "linear" and layers[0].sizes in separate_sizes and _have_one_input(layers)
        joined.append(_stack(layers) if is_separate else layers[0])
        start += 3 if is_separate else 1
    return joined


def _have_one_input(sublayers: list[Sublayer]) -> bool:
    """Check whether three sublayers are whole linear layers of one parent, with equal sizes and roles."""
    kinds = {(layer.path.rpartition(".")[0], layer.kind, layer.sizes, tuple(layer.variables)) for layer in sublayers}
    return len(sublayers) == 3 and len(kinds) == 1 and not any(map(_get_fused_parameter, sublayers))


def _stack(sublayers: list[Sublayer]) -> Sublayer:
    """Return the fused linear layer that returns the outputs of three layers, one after the other."""
    outputs, inputs = sublayers[0].sizes
    shapes = {"weight": (3 * outputs, inputs), "bias": (3 * outputs,)}
    sources = {}
    for role in sublayers[0].variables:
        names = tuple(SourceParameter(layer.variable_names[list(layer.variables).index(role)]) for layer in sublayers)
        sources[role] = TorchSources(names, ",", (TransformationStep("reshape", shapes[role]),))
    path = sublayers[0].path.rpartition(".")[0]
    return Sublayer("linear", path, shapes["weight"], sources, composite=path)


def _list_sizes(sublayers: list[Sublayer]) -> list[Sizes]:
    return [sublayer.sizes for sublayer in sublayers if sublayer.kind == "linear"]


def _count_heads(keras_sublayers: list[Sublayer]) -> dict[Sizes, int]:
    """Return the number of heads of linear layers by their size, if their kernels have an axis of heads."""
    heads: dict[Sizes, int] = {}
    for sublayer in keras_sublayers:
        weight = sublayer.variables.get("weight")
        steps = weight.steps if sublayer.kind == "linear" and isinstance(weight, KerasTarget) else ()
        if steps and steps[0].kind == "reshape" and len(steps[0].numbers) == 3:  # (heads, outputs of a head, inputs)
            heads.setdefault(sublayer.sizes, steps[0].numbers[0])
    return heads


def _get_fused_parameter(sublayer: Sublayer) -> str | None:
    """Return the parameter whose rows a sublayer shares with others; None for a sublayer with whole parameters."""
    weight = sublayer.variables.get("weight")
    source = weight.sources[0] if isinstance(weight, TorchSources) else None
    return source.name if source and source.rows else None


def _choose_outputs(torch_sublayers: list[Sublayer], keras_sizes: list[Sizes]) -> dict[Group, tuple[int, ...]]:
    """Return the numbers of outputs of Keras's layers that are one layer in PyTorch, by the group of that layer.

    A group is the layers of one size. Another layer may have the size of the fused ones by chance: if splitting all of
    them does not give the models equal numbers of layers, a group is the layers of one size and name.

    Args:
        torch_sublayers: PyTorch's sublayers in the order of execution.
        keras_sizes: The sizes of Keras's linear layers in the order of execution.
    """
    layers = [sublayer for sublayer in torch_sublayers if sublayer.kind == "linear"]
    differences, outputs = _choose_of_groups([(layer.sizes, "") for layer in layers], keras_sizes)
    if differences:
        named_differences, named_outputs = _choose_of_groups([_name_group(layer) for layer in layers], keras_sizes)
        outputs = named_outputs if named_differences < differences else outputs
    return outputs


def _name_group(sublayer: Sublayer) -> Group:
    """Return the size and the name of a layer, which the layers of repeated blocks share."""
    return sublayer.sizes, sublayer.path.rpartition(".")[2]


def _choose_of_groups(groups: list[Group], keras_sizes: list[Sizes]) -> tuple[int, dict[Group, tuple[int, ...]]]:
    """Return in how many layers the models still differ, and the numbers of outputs by the group of a layer.

    With these layers split, the models have the most similar numbers of layers of each size, then the fewest split
    groups, then the most similar order of sizes.

    Args:
        groups: The groups of PyTorch's linear layers in the order of execution.
        keras_sizes: The sizes of Keras's linear layers in the order of execution.
    """
    keras_counts = Counter(keras_sizes)
    options = {group: [(), *_list_outputs(group[0], keras_counts)] for group in Counter(groups)}
    if math.prod(map(len, options.values())) > MAX_CHOICES:  # decide by the sizes that one model lacks
        options = {x: outputs[-1:] if not keras_counts[x[0]] else outputs[:1] for x, outputs in options.items()}
    choices = []
    for outputs in product(*options.values()):
        choice = {group: numbers for group, numbers in zip(options, outputs, strict=True) if numbers}
        split_sizes = [
            piece
            for group in groups
            for piece in ([(number, group[0][1]) for number in choice[group]] if group in choice else [group[0]])
        ]
        counts = Counter(split_sizes)
        differences = sum(abs(counts[size] - keras_counts[size]) for size in counts | keras_counts)
        choices.append((differences, len(choice), split_sizes, choice))
    best = min(choice[:2] for choice in choices)
    chosen = max(
        (choice for choice in choices if choice[:2] == best),
        key=lambda choice: SequenceMatcher(None, choice[2], keras_sizes, autojunk=False).ratio(),
    )
    return best[0], chosen[3]


def _list_outputs(size: Sizes, keras_counts: Counter[Sizes]) -> list[tuple[int, ...]]:
    """Return the numbers of outputs into which a layer may be split. Keys and values may have fewer than queries."""
    total, inputs = size
    candidates = [(total // count,) * count for count in (3, 2) if total % count == 0]
    key_outputs = sorted({other[0] for other in keras_counts if other[1] == inputs and 3 * other[0] < total})
    candidates += [(total - 2 * outputs, outputs, outputs) for outputs in key_outputs]
    return [candidate for candidate in candidates if all(keras_counts[outputs, inputs] for outputs in candidate)]


def _split(sublayer: Sublayer, outputs: Sequence[int], heads: int) -> list[Sublayer]:
    """Return the projections that a fused linear layer consists of.

    Args:
        sublayer: The fused layer.
        outputs: The numbers of outputs of the projections.
        heads: The number of groups of outputs that have parts of all projections; 1 if the projections follow each
            other.
    """
    total, inputs = sublayer.sizes
    shapes = {"weight": (total, inputs), "bias": (total,)}
    pieces, start = [], 0
    for name, count in zip(NAMES[len(outputs)], outputs, strict=True):
        variables = {
            role: _select_part(variable, (start, start + count), shapes[role], heads)
            for role, variable in sublayer.variables.items()
            if isinstance(variable, TorchSources)
        }
        pieces.append(Sublayer("linear", f"{sublayer.path}.{name}", (count, inputs), variables))
        start += count
    return pieces


def _select_part(variable: TorchSources, rows: tuple[int, int], shape: tuple[int, ...], heads: int) -> TorchSources:
    """Return some rows of a variable: the same number of rows from each of its `heads` groups.

    Args:
        variable: The variable of a fused layer.
        rows: The first row and the row after the last if there is one group.
        shape: The shape of the variable.
        heads: The number of groups.
    """
    (source,) = variable.sources
    if heads == 1 and not variable.steps:
        return TorchSources((SourceParameter(source.name, rows),))
    select = [TransformationStep("rows", rows)]
    if heads > 1:
        swap = TransformationStep("transpose", (1, 0, *range(2, len(shape) + 1)))
        select = [
            TransformationStep("reshape", (heads, shape[0] // heads, *shape[1:])),
            swap,
            TransformationStep("rows", (rows[0] // heads, rows[1] // heads)),
            swap,
            TransformationStep("reshape", (rows[1] - rows[0], *shape[1:])),
        ]
    return replace(variable, steps=(*variable.steps, *select))


def _join(sublayers: list[Sublayer], sizes: Sizes) -> Sublayer:
    """Return the fused linear layer to whose parameters the rows of the three projections belong."""
    path = sublayers[0].path.removesuffix(f".{NAMES[3][0]}")
    sources = {
        role: TorchSources((SourceParameter(variable.sources[0].name),))
        for role, variable in sublayers[0].variables.items()
        if isinstance(variable, TorchSources)
    }
    return Sublayer("linear", path, sizes, sources, composite=path)
