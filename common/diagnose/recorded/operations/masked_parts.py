"""Operations of scripts after which only a part of the positions of a tensor counts, in whatever way they are written.

A script may select positions by a mask, or multiply by it and divide by the number of its ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from common.diagnose.recorded.operations.operation_names import FUNCTIONS, is_selection, normalize_name
from common.diagnose.recorded.operations.section_side import SectionSide
from common.recording.operation_format import Operation, TensorStatistics

SAME_SHARE = 1e-6  # largest difference of two equal shares of positions
INDICES = ("where", "nonzero")  # operations that return the indices of the positions at which a mask is true


@dataclass(frozen=True)
class MaskedPart:
    """A tensor of which a part of the positions counts.

    Attributes:
        tensor: The number of the tensor with all positions.
        count: The number of positions that count.
        total: The number of all positions.
        operation: The operation that takes the part.
    """

    tensor: int
    count: int
    total: int
    operation: Operation

    @property
    def share(self) -> float:
        """The share of the positions that count."""
        return self.count / max(self.total, 1)


def find_masked_part(side: SectionSide, operation: Operation) -> MaskedPart | None:
    """Return the part of a tensor that an operation takes by a mask; None if the operation does something else."""
    tensors = side.list_tensors(operation)
    if len(tensors) < 2 or not operation["outputs"]:
        return None
    if is_selection(operation) or normalize_name(operation) == "gather":
        return _find_selected(side, operation, tensors)
    if normalize_name(operation) != "mul" or len(tensors) != 2:
        return None
    for tensor, mask in (tensors, tensors[::-1]):
        if _is_mask(side, mask) and not _is_mask(side, tensor):
            count = round(side.get_statistics(mask)["sum"] or 0)
            return MaskedPart(tensor, count, side.count_elements([mask])[0], operation)
    return None


def _is_mask(side: SectionSide, tensor: int) -> bool:
    """Check whether a tensor that is computed from no weights holds zeros and ones, both at least once."""
    producer = side.find_producer(tensor)
    is_computed = producer is not None and normalize_name(producer) in FUNCTIONS  # such as the weights of an attention
    is_computed |= tensor in side.computed_from_weights
    return not is_computed and holds_zeros_and_ones(side.get_statistics(tensor))


def holds_zeros_and_ones(tensor: TensorStatistics) -> bool:
    """Check whether all numbers of a tensor are zeros and ones, and both occur."""
    total, norm = tensor["sum"], tensor["norm"]
    has_range = (tensor["minimum"], tensor["maximum"]) == (0, 1)
    return has_range and total is not None and norm is not None and math.isclose(total, norm**2, rel_tol=SAME_SHARE)


def _find_selected(side: SectionSide, operation: Operation, tensors: list[int]) -> MaskedPart | None:
    """Return the part that a selection takes by a mask, or by the indices of the positions at which a mask is true."""
    arguments = operation["arguments"]
    index, axis = str(arguments.get("index", "")), arguments.get("axis", arguments.get("dim", arguments.get("1", 0)))
    by_mask = index.startswith("[bool[")
    if axis != 0 or (index and not index.startswith(("[bool[", "[int"))):
        return None  # elements along another axis
    mask = tensors[1] if by_mask else _find_mask(side, tensors[1:])
    if mask is None:
        return None
    (rows, *_), (selected, *_) = [side.get_statistics(x)["shape"] or [1] for x in (mask, operation["outputs"][0])]
    total = side.count_elements([mask])[0]
    return MaskedPart(tensors[0], selected, total, operation) if rows else None


def _find_mask(side: SectionSide, indices: Sequence[int]) -> int | None:
    """Return the mask whose true positions all indices are; None if they are others."""
    masks = set()
    for tensor in indices:
        operation = side.find_producer(tensor)
        if operation is not None and normalize_name(operation) in ("squeeze", "cast") and len(operation["inputs"]) == 1:
            operation = side.find_producer(operation["inputs"][0])
        if operation is None or normalize_name(operation) not in INDICES or len(operation["inputs"]) != 1:
            return None
        masks.add(operation["inputs"][0])
    return masks.pop() if len(masks) == 1 else None


def drop_masked_parts(side: SectionSide, operations: Sequence[Operation]) -> list[Operation]:
    """Return operations without those that take a part by a mask, or that only number rows, if others remain.

    The other script may take the part later on.
    """
    others = [x for x in operations if x["inputs"] and find_masked_part(side, x) is None]
    return others or [*operations]


def have_same_share(a: float, b: float) -> bool:
    """Check whether two shares of positions are equal."""
    return abs(a - b) <= SAME_SHARE * max(a, b)
