"""First lines of two scripts that compute other numbers from the same tensors, whatever operations a line consists of.

A is the reference record of a diagnosis, and B the record that is compared with it. A `side` is the part of a script
that leads from tensors with an equal one in the other script to a tensor that differs.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, product
from typing import NamedTuple

from common.diagnose.recorded.operations.operation_names import normalize_name
from common.diagnose.recorded.operations.section_side import SectionSide
from common.diagnose.recorded.operations.tensor_matches import MOST_COMPARED, TensorMatches
from common.recording.operation_format import Operation


class LineResult(NamedTuple):
    """The result of a line that receives tensors with an equal one on the other side.

    Attributes:
        operations: The operations of the line.
        received: The floating-point tensors that they receive.
        result: The only tensor that other operations receive from them.
    """

    operations: Sequence[Operation]
    received: Sequence[int]
    result: int


def find_other_lines(
    a: SectionSide, b: SectionSide, matches: TensorMatches
) -> tuple[Sequence[Operation], Sequence[Operation]] | None:
    """Return the operations of two lines that compute other numbers from equal tensors; None without any.

    Apart from such lines, both sides must consist of the same operations: two scripts may share out a formula to lines
    in different ways.

    Args:
        a: Side A.
        b: Side B.
        matches: The tensors that are equal.
    """
    lines_a, lines_b = ([*_list_first_lines(side)][:MOST_COMPARED] for side in (a, b))
    pairs: list[tuple[LineResult, LineResult]] = []
    for of_a, of_b in product(lines_a, lines_b):
        is_new = all(of_a is not x and of_b is not y for x, y in pairs)
        if is_new and _are_others(a, b, of_a, of_b, matches):
            pairs.append((of_a, of_b))
    remaining = [
        side.count_names() - Counter(normalize_name(x) for pair in pairs for x in pair[index].operations)
        for index, side in enumerate((a, b))
    ]
    if not pairs or remaining[0] != remaining[1]:
        return None
    first_a, first_b = pairs[0]
    return first_a.operations, first_b.operations


def _list_first_lines(side: SectionSide) -> Iterator[LineResult]:
    """Yield the calls of lines that receive no result of another line of the section, and compute one tensor."""
    for (file, _), group in groupby(side.operations, key=lambda x: (x["file"], x["line"])):
        operations = [*group]
        computed = {output for x in operations for output in x["outputs"]}
        received = [x for operation in operations for x in side.list_floats(operation) if x not in computed]
        others = [x for x in side.operations if x not in operations]
        used = {x for operation in others for x in operation["inputs"]} | {side.target}
        if file and received and all(map(side.is_source, received)) and len(computed & used) == 1:
            yield LineResult(operations, [*dict.fromkeys(received)], *(computed & used))


def _are_others(a: SectionSide, b: SectionSide, of_a: LineResult, of_b: LineResult, matches: TensorMatches) -> bool:
    """Check whether two lines receive equal tensors, and compute tensors of one size that are no multiples."""
    equal, others = matches.count_equal(of_a.received, of_b.received)
    results = of_a.result, of_b.result
    has_one_size = a.count_elements(results[:1]) == b.count_elements(results[1:])
    if (
        not equal
        or others
        or not has_one_size
        or not a.has_statistics(results[:1])
        or not b.has_statistics(results[1:])
    ):
        return False
    return not matches.are_equal(*results) and matches.find_factor(*results) is None
