"""Operations through which only one of two scripts computes no gradient.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

import numpy as np

from common.diagnose.findings import Explanation
from common.diagnose.recorded.model_calls import describe_call
from common.diagnose.recorded.operations.operation_words import describe_lines, locate
from common.diagnose.recorded.operations.recorded_traces import match_tensors, read_traces
from common.diagnose.recorded.operations.section_side import SectionSide
from common.diagnose.recorded.operations.tensor_matches import MOST_COMPARED, TensorMatches
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.rounding import is_close, rounding_tolerance
from common.recording.operation_format import Operation
from common.recording.record_format import name_call

STOPS = ("detach", "detach_", "data", "StopGradient")  # operations through which no gradient is computed


def explain_stopped_gradients(pair: RecordPair) -> Explanation | None:
    """Name the operations through which only one script computes no gradient, such as detach; None if there are none.

    The losses of both scripts must be equal.
    """
    traces = read_traces(pair)
    if traces is None:
        return None
    matches = match_tensors(pair, traces)
    sides = [SectionSide(trace, trace["loss"], ()) for trace in traces if trace["loss"] is not None]
    if len(sides) < len(traces):
        return None
    stops = [
        [x for x in side.operations if x["name"] in STOPS and not side.computed_from_weights.isdisjoint(x["inputs"])]
        for side in sides
    ]
    for name, side, operations, others in zip("ab", sides, stops, reversed(stops), strict=True):
        unmatched = [
            operation
            for operation in operations[:MOST_COMPARED]
            if not any(_receive_equal(*((operation, x) if name == "a" else (x, operation)), matches) for x in others)
        ]
        if unmatched:
            sentence = f"only {name.upper()} computes no gradient through {describe_lines(side, unmatched)}"
            # The other script may use torch.no_grad, which is no operation
            return Explanation("stopped_gradient", sentence, confirmed=False, side=name)
    return None


def explain_call_without_gradient(pair: RecordPair, step: int) -> Explanation | None:
    """Name a call of the model that only one script makes without a gradient, such as under torch.no_grad.

    A record does not hold such a call, but its output is among the tensors from which the loss is computed.

    Args:
        pair: The records.
        step: The step, in which one script calls its model more often.
    """
    a, b = (side.record.ranks[0].operations for side in pair.sides)
    if a is None or b is None or a["loss"] is None or b["loss"] is None:
        return None
    calls = [_list_outputs(side, step) for side in pair.sides]
    tolerance = rounding_tolerance(pair.noise, pair.precision)
    name, lacking, full = ("B", b, a) if len(calls[0]) > len(calls[1]) else ("A", a, b)
    of_lacking, of_full = calls[::-1] if name == "B" else calls
    matches = TensorMatches(lacking["tensors"], full["tensors"], tolerance)
    assert lacking["loss"] is not None
    side = SectionSide(lacking, lacking["loss"], ())
    are_recorded = [
        any(is_close(x, y, tolerance) for x in outputs for others in of_lacking for y in others) for outputs in of_full
    ]
    # Without one of these calls, the script has another model, which may compute in one call what they do
    for call, is_recorded in enumerate(are_recorded if any(are_recorded) else []):
        prefix = f"{name_call(0, call)}/output/"
        numbers = [number for known, number in full["names"].items() if known.startswith(prefix)]
        users = [x for x in side.operations for y in numbers if any(matches.are_equal(z, y) for z in x["inputs"])]
        if users and not is_recorded:
            sentence = (
                f": {describe_call(call, len(of_full))} has no gradient in {name}, as under torch.no_grad or after "
                f"detach: its output enters the loss in {locate(users[0])}"
            )
            return Explanation("stopped_gradient", sentence, side=name.lower())
    return None


def _list_outputs(side: RecordedSide, step: int) -> list[list[np.ndarray]]:
    """Return the outputs of each recorded call in the first micro-batch of a step."""
    rank, number = side.batches.list_micro_batches(step)[0]
    count = len(side.batches.count_rows(step, rank, number))
    return [[*side.batches.read_call(step, rank, number, "output", call).values()] for call in range(count)]


def _receive_equal(a: Operation, b: Operation, matches: TensorMatches) -> bool:
    return any(matches.are_equal(x, y) for x in a["inputs"] for y in b["inputs"])
