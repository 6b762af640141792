"""First operations of two scripts that return other numbers for a reason that their tensors show.

A is the reference record of a diagnosis, and B the record that is compared with it. A `side` is the part of a script
that leads from tensors with an equal one in the other script to a tensor that differs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, product

from common.diagnose.recorded.operations.operation_names import (
    COLLECTING,
    INDEXED,
    LAYOUTS,
    is_selection,
    normalize_name,
)
from common.diagnose.recorded.operations.section_side import SectionSide
from common.diagnose.recorded.operations.tensor_matches import MOST_COMPARED, TensorMatches
from common.recording.operation_format import Operation


@dataclass(frozen=True)
class AveragedResult:
    """Tensors that differ by the number of elements of which only one script computes the mean.

    Attributes:
        a: The operations of A that compute its tensor from tensors with an equal one in B.
        b: The same for B.
        side: The side that computes the mean: 0 or 1.
        count: The number of elements of each mean.
    """

    a: Sequence[Operation]
    b: Sequence[Operation]
    side: int
    count: int


def find_other_indices(a: SectionSide, b: SectionSide, matches: TensorMatches) -> tuple[Operation, Operation] | None:
    """Return operations of the same name that receive equal numbers and as many, but other, indices; None without any.

    Args:
        a: Side A.
        b: Side B.
        matches: The tensors that are equal.
    """
    firsts = [[x for x in side.first_operations if normalize_name(x) in INDEXED][:MOST_COMPARED] for side in (a, b)]
    for of_a, of_b in product(*firsts):
        numbers_a, numbers_b = a.list_floats(of_a, is_nonzero=True), b.list_floats(of_b, is_nonzero=True)
        indices_a, indices_b = a.list_indices(of_a), b.list_indices(of_b)
        if (
            normalize_name(of_a) == normalize_name(of_b)
            and (len(numbers_a), len(indices_a)) == (len(numbers_b), len(indices_b)) == (1, 1)
            and matches.are_equal(numbers_a[0], numbers_b[0])
            and a.count_elements(indices_a) == b.count_elements(indices_b)
            and a.has_statistics([*indices_a, *of_a["outputs"]])
            and b.has_statistics([*indices_b, *of_b["outputs"]])
            and not matches.are_equal(indices_a[0], indices_b[0])
        ):
            return of_a, of_b
    return None


def find_other_elements(a: SectionSide, b: SectionSide, matches: TensorMatches) -> tuple[Operation, Operation] | None:
    """Return the only selections from an equal tensor that take as many, but other, elements; None without any.

    One of them takes them by a tensor of indices: other indices are compared with each other.

    Args:
        a: Side A.
        b: Side B.
        matches: The tensors that are equal.
    """
    firsts = [[x for x in side.first_operations if is_selection(x) and x["inputs"]] for side in (a, b)]
    for of_a, of_b in product(*(selections[:MOST_COMPARED] for selections in firsts)):
        taken_a, taken_b, results = of_a["inputs"][0], of_b["inputs"][0], (of_a["outputs"][0], of_b["outputs"][0])
        counts = [
            sum(x["inputs"][0] == taken for x in of_side)
            for of_side, taken in zip(firsts, (taken_a, taken_b), strict=True)
        ]
        if (
            counts == [1, 1]
            and (a.find_selection(of_a) is None) != (b.find_selection(of_b) is None)
            and matches.are_equal(taken_a, taken_b)
            and a.count_elements(results[:1]) == b.count_elements(results[1:])
            and a.has_statistics(results[:1])
            and b.has_statistics(results[1:])
            and not matches.are_equal(*results)
        ):
            return of_a, of_b
    return None


def find_averaged(a: SectionSide, b: SectionSide, matches: TensorMatches) -> AveragedResult | None:
    """Return the first tensors that differ by the number of elements of which only one script computes the mean.

    A single number is a multiple of any other one, so that only larger tensors are compared.

    Args:
        a: Side A.
        b: Side B.
        matches: The tensors that are equal.
    """
    for side, (mean, other) in enumerate(((a, b), (b, a))):
        averages = [x for x in mean.operations if normalize_name(x) == "mean" and mean.count_averaged(x) > 1]
        for average, operation in product(averages[:MOST_COMPARED], other.operations[:MOST_COMPARED]):
            result, count = average["outputs"][0], mean.count_averaged(average)
            of_a, of_b = (result, operation["outputs"][0]) if side == 0 else (operation["outputs"][0], result)
            is_several = mean.count_elements([result]) != [1]
            if is_several and matches.are_multiples(of_a, of_b, count if side == 0 else 1 / count):
                return AveragedResult(a.list_leading_to(of_a), b.list_leading_to(of_b), side, count)
    return None


def find_unrecorded(
    a: SectionSide, b: SectionSide, first: tuple[Operation, Operation], matches: TensorMatches
) -> list[int] | None:
    """Return the shape of a tensor that no operation computes, and that alone differs in what two operations receive.

    Args:
        a: Side A.
        b: Side B.
        first: Operations of the two sides.
        matches: The tensors that are equal.

    Returns:
        The shape in A; None if the operations have other names, or if something else differs or nothing is equal.
    """
    unrecorded = [side.list_unrecorded(x) for side, x in zip((a, b), first, strict=True)]
    sizes = [sorted(side.count_elements(x)) for side, x in zip((a, b), unrecorded, strict=True)]
    if normalize_name(first[0]) != normalize_name(first[1]) or not unrecorded[0] or sizes[0] != sizes[1]:
        return None
    of_a, of_b = (
        [x for x in side.list_tensors(operation) if x not in left_out]
        for side, operation, left_out in zip((a, b), first, unrecorded, strict=True)
    )
    remaining = [*of_b]
    for tensor in of_a:
        counterpart = next((x for x in remaining if matches.are_equal(tensor, x)), None)
        if counterpart is None:
            return None
        remaining.remove(counterpart)
    return a.get_statistics(unrecorded[0][0])["shape"] if of_a and not remaining else None


def find_other_partners(a: SectionSide, b: SectionSide, matches: TensorMatches) -> tuple[Operation, Operation] | None:
    """Return the first operations that combine a tensor with another one on each side; None if there are none.

    Both sides must combine the same tensors, two at a time: not one before the other as in (x * y) * z.

    Args:
        a: Side A.
        b: Side B.
        matches: The tensors that are equal.
    """
    pairs_a, pairs_b = _find_pairs(a), _find_pairs(b)
    tensors_a, tensors_b = ({*chain(*pairs)} for pairs in (pairs_a, pairs_b))
    counterparts = {x: [y for y in tensors_a if matches.are_equal(y, x)] for x in tensors_b}
    if len(tensors_a) != len(tensors_b) or any(len(equal) != 1 for equal in counterparts.values()):
        return None
    in_a = {frozenset(counterparts[x][0] for x in pair): operation for pair, operation in pairs_b.items()}
    other_b = next((operation for pair, operation in in_a.items() if pair not in pairs_a), None)
    other_a = next((operation for pair, operation in pairs_a.items() if pair not in in_a), None)
    return None if other_a is None or other_b is None else (other_a, other_b)


def find_omitted(
    a: SectionSide, b: SectionSide, matches: TensorMatches
) -> tuple[list[Operation], list[Operation]] | None:
    """Return the first operation that only one side computes, in that side's list; None if none is known.

    The other side computes the next operation from what the omitted one receives, and otherwise from equal tensors.

    Args:
        a: Side A.
        b: Side B.
        matches: The tensors that are equal.
    """
    for side, (longer, shorter) in enumerate(((a, b), (b, a))):
        for operation in list_surplus(longer.entering_operations[:MOST_COMPARED], longer, shorter):
            results = _find_layouts_of(longer, operation)
            following = [(normalize_name(x), longer.list_tensors(x)) for x in longer.list_users(results)]
            for received, (name, inputs) in product(longer.list_tensors(operation), following[:MOST_COMPARED]):
                without = name, [received if tensor in results else tensor for tensor in inputs]
                if _has_counterpart(without, shorter, matches, is_reversed=bool(side)):
                    if list_surplus(_list_replacing(operation, shorter), shorter, longer):
                        return None  # a mean in place of a sum, perhaps after a product
                    return ([], [operation]) if side else ([operation], [])
    return None


def _list_replacing(operation: Operation, other: SectionSide) -> list[Operation]:
    """Return the means of the other side that may stand in place of a sum, or its sums in place of a mean."""
    name = {"sum": "mean", "mean": "sum"}.get(normalize_name(operation))
    return [x for x in other.operations if normalize_name(x) == name]


def list_surplus(operations: Sequence[Operation], longer: SectionSide, shorter: SectionSide) -> list[Operation]:
    """Return the operations of a side whose names the other side has less often.

    A script may choose elements by "where" once, or select them by several masks.
    """
    surplus = longer.count_names() - shorter.count_names()
    if "where" in shorter.count_names():
        del surplus["where"]
    return [x for x in operations if normalize_name(x) in surplus]


def find_partial_outputs(a: SectionSide, b: SectionSide) -> tuple[list[Operation], list[Operation]] | None:
    """Return operations by which one side's loss takes a slice of a tensor that both have, in that side's list.

    Return None if both or none of the sides do so, or if the slices keep all elements.

    Args:
        a: Side A.
        b: Side B.
    """
    slices = [
        [
            x
            for x in side.entering_operations
            if side.find_selection(x) is not None
            and side.count_elements(x["outputs"])[0] < side.count_elements(x["inputs"])[0]
        ]
        for side in (a, b)
    ]
    if any(side.find_selection(x) is not None for side in (a, b) for x in side.list_received_results()):
        return None
    return (slices[0], slices[1]) if bool(slices[0]) != bool(slices[1]) else None


def _has_counterpart(
    following: tuple[str, Sequence[int]], shorter: SectionSide, matches: TensorMatches, *, is_reversed: bool
) -> bool:
    """Check whether the side that omits an operation computes the following one from equal tensors.

    Args:
        following: The name of the operation that follows, and what it would receive without the omitted one.
        shorter: The side that omits it.
        matches: The tensors that are equal.
        is_reversed: Whether A omits it.
    """
    name, inputs = following
    for counterpart in shorter.first_operations[:MOST_COMPARED]:
        tensors = shorter.list_tensors(counterpart)
        equal, others = matches.count_equal(*((tensors, inputs) if is_reversed else (inputs, tensors)))
        # One loss may have several notations: operations with other names must receive two equal tensors
        if equal >= (1 if normalize_name(counterpart) == name else 2) and not others:
            return True
    return False


def _find_pairs(side: SectionSide) -> dict[frozenset[int], Operation]:
    """Return the operations that first combine two received tensors, or results of one each, by the two tensors."""
    sources: dict[int, frozenset[int]] = {}
    pairs: dict[frozenset[int], Operation] = {}
    for operation in side.operations:
        received = [sources.get(x, frozenset([x])) for x in side.list_floats(operation)]
        combined = frozenset().union(*received)
        sources.update(dict.fromkeys(operation["outputs"], combined))
        if len(combined) == 2 and {*map(len, received)} == {1} and normalize_name(operation) not in COLLECTING:
            pairs.setdefault(combined, operation)
    return pairs


def _find_layouts_of(side: SectionSide, operation: Operation) -> set[int]:
    """Return the results of an operation, also in the layouts into which the section puts them."""
    layouts = {*operation["outputs"]}
    for x in side.operations:
        tensors = side.list_tensors(x)
        if normalize_name(x) in LAYOUTS and len(tensors) == 1 and tensors[0] in layouts:
            layouts.update(x["outputs"])
    return layouts
