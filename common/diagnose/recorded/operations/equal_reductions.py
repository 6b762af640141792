"""Losses that reduce equal tensors to one number. If the terms cancel each other, rounding is a large part of it.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

import math
from collections import Counter
from typing import NamedTuple

from common.diagnose.findings import Explanation
from common.diagnose.recorded.operations.operation_names import KEEPING, normalize_name
from common.diagnose.recorded.operations.operation_words import describe_lines
from common.diagnose.recorded.operations.recorded_traces import match_tensors, read_traces
from common.diagnose.recorded.operations.section_explanation import EQUAL_TENSORS
from common.diagnose.recorded.operations.section_side import SectionSide
from common.diagnose.recorded.record_pair import RecordPair
from common.recording.operation_format import OperationTrace

# Largest relative difference of two tensors that another model may have computed, whose weights differ by rounding: an
# optimizer such as Adam makes it larger
LARGEST_ROUNDING = 1e-4


class Reduction(NamedTuple):
    """A mean or a sum of all elements of a tensor, which is the loss, perhaps with the opposite sign.

    Attributes:
        name: "mean" or "sum".
        received: The number of the tensor.
        negations: How often the sign changes.
        words: Words for the operation and its line.
        size: The number of elements of the tensor.
        norm: The norm of the tensor; NaN if it is not finite.
        total: The sum of its elements; NaN if it is not finite.
    """

    name: str
    received: int
    negations: int
    words: str
    size: int
    norm: float
    total: float


def reduces_equal_tensors(pair: RecordPair) -> bool:
    """Check whether both losses are the same reduction of tensors with the same numbers."""
    traces, reductions = read_traces(pair), _find_reductions(pair)
    if traces is None or reductions is None:
        return False
    a, b = reductions
    is_same = (a.name, a.negations) == (b.name, b.negations)
    return is_same and match_tensors(pair, traces).are_equal(a.received, b.received)


def explain_other_reduction(pair: RecordPair, place: str) -> Explanation | None:
    """Explain a loss that is the mean of a tensor in one script, and the sum in the other one; None if it is not.

    Args:
        pair: The records.
        place: Where the loss is, in reports.
    """
    reductions = _find_reductions(pair)
    if reductions is None or reductions[0].name == reductions[1].name:
        return None
    a, b = reductions
    is_close = a.size == b.size and math.isclose(a.norm, b.norm, rel_tol=LARGEST_ROUNDING)
    if not is_close or not math.isclose(a.total, b.total, rel_tol=0, abs_tol=LARGEST_ROUNDING * a.norm * a.size**0.5):
        return None
    return Explanation("operation", f"{place}: {EQUAL_TENSORS} A computes {a.words}, and B {b.words}")


def _find_reductions(pair: RecordPair) -> tuple[Reduction, Reduction] | None:
    """Return the reductions of A's and of B's loss; None if one of the losses is computed in another way."""
    traces = read_traces(pair)
    a, b = (None, None) if traces is None else (_find_reduction(trace) for trace in traces)
    return None if a is None or b is None else (a, b)


def _find_reduction(trace: OperationTrace) -> Reduction | None:
    """Return the reduction that a loss is; None if it is computed in another way."""
    side, names, number = SectionSide(trace, 0, ()), Counter[str](), trace["loss"]
    for _ in trace["operations"]:
        operation = None if number is None else side.find_producer(number)
        tensors = [] if operation is None else side.list_tensors(operation)
        if operation is None or len(tensors) != 1:
            return None
        name, number = normalize_name(operation), tensors[0]
        names[name] += 1
        if name in ("mean", "sum"):
            statistics, (size,) = trace["tensors"][number], side.count_elements([number])
            norm, total = (math.nan if x is None else x for x in (statistics["norm"], statistics["sum"]))
            return Reduction(name, number, names["neg"], describe_lines(side, [operation]), size, norm, total)
        if name not in {*KEEPING, "neg"}:
            return None
    return None
