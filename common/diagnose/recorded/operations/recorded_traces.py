"""The operations of two records, and the tensors that both have.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

import math

from common.diagnose.recorded.operations.joined_losses import join_losses
from common.diagnose.recorded.operations.parts import expand_parts
from common.diagnose.recorded.operations.tensor_matches import TensorMatches
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.rounding import rounding_tolerance
from common.recording.operation_format import OperationTrace

LEAST_DIFFERENCE = 1e-4  # relative difference of two losses from which on it is no rounding of the loss itself


def read_traces(pair: RecordPair) -> tuple[OperationTrace, OperationTrace] | None:
    """Return the operations of both first micro-batches; None if they have other examples, or if not all are recorded.

    Only the first process's are compared.
    """
    a, b = (side.record.ranks[0].operations for side in pair.sides)
    if a is None or b is None or not (a["complete"] and b["complete"]):
        return None
    step = pair.equal_steps[0]
    counts = [side.batches.count_examples(step)[0] for side in pair.sides]
    has_same_examples = counts[0] == counts[1] and set(pair.orders[step][: counts[0]]) == {*range(counts[0])}
    return join_losses(*expand_parts(a, b)) if has_same_examples else None


def match_tensors(
    pair: RecordPair, traces: tuple[OperationTrace, OperationTrace], *, is_ordered: bool = False
) -> TensorMatches:
    """Match the tensors of both sides by their numbers, and those of layers that are known to be equal.

    Args:
        pair: The records.
        traces: The operations of both sides.
        is_ordered: Whether the same numbers in another order are no match.
    """
    a, b = (trace["names"] for trace in traces)
    known = [(a[name_a], b[name_b]) for name_a, name_b in pair.equal_tensors if name_a in a and name_b in b]
    tolerance = rounding_tolerance(pair.noise, pair.precision)
    return TensorMatches(traces[0]["tensors"], traces[1]["tensors"], tolerance, known, is_ordered=is_ordered)


def are_other_losses(traces: tuple[OperationTrace, OperationTrace], numbers: tuple[int, int]) -> bool:
    """Check whether two losses differ, perhaps by less than the rounding errors of the layers."""
    a, b = (trace["tensors"][number]["sum"] for trace, number in zip(traces, numbers, strict=True))
    return a is not None and b is not None and not math.isclose(a, b, rel_tol=LEAST_DIFFERENCE)
