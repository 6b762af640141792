"""One linear layer for query, key and value on one side, and three on the other."""

from collections import Counter
from itertools import groupby

from common.map.sublayers import Sublayer, TorchSources
from common.map.transformation import SourceParameter

NAMES = ("query", "key", "value")
Sizes = tuple[int, ...]


def align_fused_projections(ours: list[Sublayer], theirs: list[Sublayer]) -> list[Sublayer]:
    """PyTorch's parts: those that Keras has three of are split, and those that Keras has in one are joined.

    Only where the numbers of layers of these sizes are then the same on both sides.
    """
    mine, other = _count(ours), _count(theirs)
    found = []
    for _, group in groupby(ours, lambda part: _fused_name(part) or id(part)):
        parts = list(group)
        whole = (sum(part.sizes[0] for part in parts), *parts[0].sizes[1:])
        third = parts[0].sizes
        if len(parts) == 3 and not mine[whole] and 0 < 3 * other[whole] == mine[third] - other[third]:
            found.append(_joined(parts, whole))
        elif len(parts) == 1 and _is_fused(parts[0], mine, other):
            found += _split(parts[0])
        else:
            found += parts
    return found


def _count(parts: list[Sublayer]) -> Counter[Sizes]:
    return Counter(part.sizes for part in parts if part.kind == "linear")


def _fused_name(part: Sublayer) -> str | None:
    """The parameter of which this part has some rows."""
    array = part.arrays.get("weight")
    source = array.sources[0] if isinstance(array, TorchSources) else None
    return source.name if source and source.rows else None


def _is_fused(part: Sublayer, mine: Counter[Sizes], other: Counter[Sizes]) -> bool:
    if part.kind != "linear" or part.sizes[0] % 3 or other[part.sizes]:
        return False
    third = (part.sizes[0] // 3, part.sizes[1])
    return other[third] == mine[third] + 3 * mine[part.sizes]


def _split(part: Sublayer) -> list[Sublayer]:
    size = part.sizes[0] // 3
    found = []
    for number, name in enumerate(NAMES):
        rows = (number * size, (number + 1) * size)
        arrays = {
            role: TorchSources((SourceParameter(array.sources[0].name, rows),))
            for role, array in part.arrays.items()
            if isinstance(array, TorchSources)
        }
        found.append(Sublayer("linear", f"{part.path}.{name}", (size, part.sizes[1]), arrays))
    return found


def _joined(parts: list[Sublayer], sizes: Sizes) -> Sublayer:
    arrays = {
        role: TorchSources((SourceParameter(array.sources[0].name),))
        for role, array in parts[0].arrays.items()
        if isinstance(array, TorchSources)
    }
    return Sublayer("linear", parts[0].path.removesuffix(f".{NAMES[0]}"), sizes, arrays)
