"""Losses that are NaN or infinite in one of two records, and the operation that first returns such numbers.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

import math

from common.diagnose.findings import Explanation
from common.diagnose.recorded.operations.operation_words import describe_lines
from common.diagnose.recorded.operations.section_side import SectionSide
from common.diagnose.recorded.record_pair import RecordPair
from common.recording.operation_format import Operation, OperationTrace

NOT_FINITE = "not_finite"  # name of the cause


def explain_not_finite(pair: RecordPair, step: int, losses: tuple[float, float]) -> Explanation | None:
    """Return which loss is not finite; None if both are finite, or neither is. losses: of the step, in A and in B."""
    are_finite = [*map(math.isfinite, losses)]
    if are_finite[0] == are_finite[1]:
        return None
    index = are_finite.index(False)
    name, value = "AB"[index], "NaN" if math.isnan(losses[index]) else "infinite"
    sentence = f"step {step}: the loss is {value} in {name} and {losses[1 - index]:.6g} on the other side"
    trace = pair.sides[index].record.ranks[0].operations
    if step == pair.equal_steps[0] and trace is not None and (origin := find_origin(trace)) is not None:
        words = describe_lines(SectionSide(trace, trace["loss"] or 0, ()), [origin])
        sentence += f": {name} computes NaN or infinite numbers first by {words}"
    return Explanation(NOT_FINITE, sentence, side=name.lower())


def find_origin(trace: OperationTrace) -> Operation | None:
    """Return the first operation with a result that is not finite, and from which the loss gets such numbers.

    The mask of a softmax may be infinite, too, and the softmax still returns finite numbers.
    """
    tensors, loss = trace["tensors"], trace["loss"]
    if loss is None or tensors[loss]["norm"] is not None:
        return None
    infinite, origin = {loss}, None
    for operation in reversed(trace["operations"]):
        if not infinite.isdisjoint(operation["outputs"]):
            received = {x for x in operation["inputs"] if tensors[x]["norm"] is None}
            infinite |= received
            origin = operation
    return origin
