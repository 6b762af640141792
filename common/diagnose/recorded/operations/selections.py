"""Elements that operations select by an index such as `[:, -1]`, in one form for all ways to write it."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

NUMBER = r"-?\d{1,18}"
NUMBERS = re.compile(NUMBER)
SLICE = re.compile(rf"(?:{NUMBER})?:(?:{NUMBER})?(?::{NUMBER})?")
MOST_POSITIONS = 10_000  # number of positions of an axis that are joined
LIST = re.compile(rf"\[{NUMBER}(?:,{NUMBER})*\]")


@dataclass(frozen=True)
class Selection:
    """Elements of a tensor.

    Attributes:
        shape: The shape of the tensor.
        positions: The selected positions of each axis.
    """

    shape: tuple[int, ...]
    positions: tuple[range | tuple[int, ...], ...]

    @property
    def is_reordering(self) -> bool:
        """Return whether all elements are selected, in another order."""
        axes = [(range(size), taken) for size, taken in zip(self.shape, self.positions, strict=True)]
        is_whole = all(
            len(taken) == len(every) and (isinstance(taken, range) or len({*taken}) == len(taken))
            for every, taken in axes
        )
        return is_whole and any(taken != every for every, taken in axes)


def find_selection(index: str, shape: Sequence[int]) -> Selection | None:
    """Return what an index selects.

    Args:
        index: The index in Python's notation, as recorders write it.
        shape: The shape of the indexed tensor.

    Returns:
        The selection; None if the index contains tensors or several lists, or does not belong to the shape.
    """
    items = [item for item in index[1:-1].split(", ") if item != "None"]  # a new axis selects nothing
    if items.count("...") > 1 or sum(item.startswith("[") for item in items) > 1:
        return None
    items = items if "..." in items else [*items, "..."]
    place, missing = items.index("..."), len(shape) - len(items) + 1
    items[place : place + 1] = [":"] * missing
    if len(items) != len(shape):
        return None
    try:
        return Selection(tuple(shape), tuple(map(_find_positions, items, shape)))
    except (IndexError, ValueError):  # a position outside of the tensor, a step of zero, or a tensor
        return None


def are_other_selections(a: Selection | None, b: Selection | None) -> bool:
    """Check whether two indices surely select other elements, whatever the order of the axes of the tensors."""
    if a is None or b is None:
        return False
    if a.shape == b.shape:
        return a.positions != b.positions
    has_same_axes = Counter(size for size in a.shape if size > 1) == Counter(size for size in b.shape if size > 1)
    return has_same_axes and _count_selected(a) != _count_selected(b)


def join_selections(selections: Sequence[Selection | None]) -> list[set[int]] | None:
    """Return the positions of each axis that some selections from one tensor take; None if they are not known."""
    known = [x for x in selections if x is not None]
    if not known or len(known) < len(selections):
        return None
    axes = [*zip(*(x.positions for x in known), strict=True)]
    if any(sum(map(len, taken)) > MOST_POSITIONS for taken in axes):
        return None
    return [{position for positions in taken for position in positions} for taken in axes]


def _count_selected(selection: Selection) -> Counter[tuple[int, range | tuple[int, ...]]]:
    """Return the axes without their order."""
    return Counter((size, taken) for size, taken in zip(selection.shape, selection.positions, strict=True) if size > 1)


def _find_positions(item: str, size: int) -> range | tuple[int, ...]:
    """Return the positions that an item of an index selects of an axis. Raise an error if the item does not say it."""
    positions = range(size)
    if SLICE.fullmatch(item):
        return positions[slice(*(int(bound) if bound else None for bound in item.split(":")))]
    if NUMBERS.fullmatch(item):
        position = positions[int(item)]
        return range(position, position + 1)
    if LIST.fullmatch(item):
        taken = tuple(positions[int(number)] for number in item[1:-1].split(","))
        step = taken[1] - taken[0] if len(taken) > 1 else 1
        same = range(taken[0], taken[0] + step * len(taken), step) if step else ()
        return same if tuple(same) == taken else taken
    raise ValueError(item)
