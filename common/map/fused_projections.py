"""Alignment of fused projections: one linear layer for query, key and value on one side, three layers on the other.

PyTorch's sublayers (layers, or pieces of a layer that can be paired with Keras's) are split or joined as Keras's model
has them. The size of a linear layer is the shape of its weight in PyTorch, (outputs, inputs).
"""

from collections import Counter
from itertools import groupby

from common.map.sublayers import Sublayer, TorchSources
from common.map.transformation import SourceParameter

NAMES = ("query", "key", "value")
Sizes = tuple[int, ...]


def align_fused_projections(torch_sublayers: list[Sublayer], keras_sublayers: list[Sublayer]) -> list[Sublayer]:
    """Split or join PyTorch's projections of query, key and value so that they match Keras's.

    They are split or joined only if both sides then have equal numbers of linear layers of these sizes.
    """
    torch_counts, keras_counts = _count_linear(torch_sublayers), _count_linear(keras_sublayers)
    aligned = []
    # A group is the pieces of one fused parameter, or a single sublayer.
    for _, group in groupby(torch_sublayers, lambda sublayer: _get_fused_parameter(sublayer) or id(sublayer)):
        sublayers = list(group)
        size = sublayers[0].sizes
        fused_size = (3 * size[0], *size[1:]) if size else ()  # a parameter may be a single number
        surplus = torch_counts[size] - keras_counts[size]
        if len(sublayers) == 3 and not torch_counts[fused_size] and 0 < 3 * keras_counts[fused_size] == surplus:
            aligned.append(_join(sublayers, fused_size))
        elif len(sublayers) == 1 and _should_split(sublayers[0], torch_counts, keras_counts):
            aligned += _split(sublayers[0])
        else:
            aligned += sublayers
    return aligned


def _count_linear(sublayers: list[Sublayer]) -> Counter[Sizes]:
    return Counter(sublayer.sizes for sublayer in sublayers if sublayer.kind == "linear")


def _get_fused_parameter(sublayer: Sublayer) -> str | None:
    """Return the parameter of which this sublayer has only some rows; None if it has whole parameters."""
    weight = sublayer.variables.get("weight")
    source = weight.sources[0] if isinstance(weight, TorchSources) else None
    return source.name if source and source.rows else None


def _should_split(sublayer: Sublayer, torch_counts: Counter[Sizes], keras_counts: Counter[Sizes]) -> bool:
    """Check whether Keras has three linear layers of a third of the outputs for each PyTorch layer of this size."""
    if sublayer.kind != "linear" or sublayer.sizes[0] % 3 or keras_counts[sublayer.sizes]:
        return False
    third = (sublayer.sizes[0] // 3, sublayer.sizes[1])
    return keras_counts[third] == torch_counts[third] + 3 * torch_counts[sublayer.sizes]


def _split(sublayer: Sublayer) -> list[Sublayer]:
    """Return the projections of query, key and value, each with a third of the rows of a fused linear layer."""
    size = sublayer.sizes[0] // 3
    return [
        Sublayer(
            "linear",
            f"{sublayer.path}.{name}",
            (size, sublayer.sizes[1]),
            _select_rows(sublayer, (number * size, (number + 1) * size)),
        )
        for number, name in enumerate(NAMES)
    ]


def _join(sublayers: list[Sublayer], sizes: Sizes) -> Sublayer:
    """Return the fused linear layer whose parameters the three projections have rows of."""
    path = sublayers[0].path.removesuffix(f".{NAMES[0]}")
    return Sublayer("linear", path, sizes, _select_rows(sublayers[0], None), composite=path)


def _select_rows(sublayer: Sublayer, rows: tuple[int, int] | None) -> dict[str, TorchSources]:
    """Return the variables of a sublayer with the given rows of its parameters; None selects all rows."""
    return {
        role: TorchSources((SourceParameter(variable.sources[0].name, rows),))
        for role, variable in sublayer.variables.items()
        if isinstance(variable, TorchSources)
    }
