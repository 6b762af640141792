"""Numbers in the code of two scripts that differ: bounds, thresholds, and constant tensors such as a range.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from common.diagnose.recorded.operations.operation_names import normalize_name
from common.diagnose.recorded.operations.section_side import SectionSide
from common.diagnose.recorded.operations.tensor_matches import MOST_COMPARED, TensorMatches
from common.recording.operation_format import Operation

# Functions that compare each element of a tensor with a number, in one spelling
BOUNDS = ("maximum", "lt", "le", "gt", "ge", "less", "lessequal", "greater", "greaterequal", "where")


class OtherConstants(NamedTuple):
    """The operations that receive other numbers in each script.

    Attributes:
        a: Operations of A.
        b: Operations of B.
        words: The numbers of A and of B.
    """

    a: Sequence[Operation]
    b: Sequence[Operation]
    words: str


def find_other_constants(a: SectionSide, b: SectionSide, matches: TensorMatches) -> OtherConstants | None:
    """Return the first operations with which the scripts compare an equal tensor with other numbers; None without any.

    Otherwise return the only operations that receive a tensor of other constant numbers.

    Args:
        a: Side A of a section.
        b: Side B.
        matches: The tensors that are equal.
    """
    bounds_a, bounds_b = (
        [x for x in side.operations if normalize_name(x) in BOUNDS][:MOST_COMPARED] for side in (a, b)
    )
    for of_a, of_b in product(bounds_a, bounds_b):
        compared = product(a.list_tensors(of_a), b.list_tensors(of_b))
        numbers_a, numbers_b = _list_constants(a, of_a), _list_constants(b, of_b)
        is_other = numbers_a - numbers_b and numbers_b - numbers_a
        if is_other and any(matches.are_equal(*tensors) for tensors in compared):
            return OtherConstants([of_a], [of_b], f"{_write(numbers_a)} in A and {_write(numbers_b)} in B")
    constants = [
        [(x, tensor) for x in side.operations for tensor in _list_constant_tensors(side, x)][:MOST_COMPARED]
        for side in (a, b)
    ]
    if not all(len({tensor for _, tensor in of_side}) == 1 for of_side in constants):
        return None
    (user_a, tensor_a), (user_b, tensor_b) = (of_side[0] for of_side in constants)
    if a.count_elements([tensor_a]) != b.count_elements([tensor_b]) or matches.are_equal(tensor_a, tensor_b):
        return None
    words = f"numbers {_describe_range(a, tensor_a)} in A and {_describe_range(b, tensor_b)} in B"
    return OtherConstants([user_a], [user_b], words)


def _list_constants(side: SectionSide, operation: Operation) -> set[float]:
    """Return the numbers of the code that an operation receives, also as arguments."""
    values = operation["arguments"].values()
    arguments = {float(x) for x in values if isinstance(x, int | float) and not isinstance(x, bool)}
    return arguments | {*side.list_numbers(operation)}


def _list_constant_tensors(side: SectionSide, operation: Operation) -> list[int]:
    """Return the tensors of several numbers that an operation receives and that depend on no other tensor."""
    constant = [x for x in side.list_tensors(operation) if side.is_constant_of_code(x) and side.has_statistics([x])]
    return [x for x in constant if side.count_elements([x]) != [1]]


def _describe_range(side: SectionSide, tensor: int) -> str:
    statistics = side.get_statistics(tensor)
    return f"from {statistics['minimum']:.6g} to {statistics['maximum']:.6g}"


def _write(numbers: set[float]) -> str:
    return " and ".join(f"{x:.6g}" for x in sorted(numbers))
