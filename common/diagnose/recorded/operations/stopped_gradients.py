"""Operations through which only one of two scripts computes no gradient.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

import re

from common.diagnose.findings import Explanation
from common.diagnose.recorded.operations.operation_words import describe_lines, locate
from common.diagnose.recorded.operations.recorded_traces import match_tensors, read_traces
from common.diagnose.recorded.operations.section_side import SectionSide
from common.diagnose.recorded.operations.tensor_matches import MOST_COMPARED, TensorMatches
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.rounding import rounding_tolerance
from common.recording.operation_format import Operation

OUTPUT_OF_CALL = re.compile(r"batch/0/call/\d+/output/")  # the begin of the names of the outputs of later calls
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


def explain_call_without_gradient(pair: RecordPair) -> Explanation | None:
    """Name a call of the model that only one script makes without a gradient, such as under torch.no_grad.

    A record does not count such a call, but its output is among the tensors from which the loss is computed.
    """
    traces = [side.record.ranks[0].operations for side in pair.sides]
    a, b = traces
    if a is None or b is None or a["loss"] is None or b["loss"] is None:
        return None
    tolerance = rounding_tolerance(pair.noise, pair.precision)
    for name, trace, other in (("b", b, a), ("a", a, b)):
        assert trace["loss"] is not None
        side, matches = (
            SectionSide(trace, trace["loss"], ()),
            TensorMatches(trace["tensors"], other["tensors"], tolerance),
        )
        outputs = {call: number for call, number in other["names"].items() if OUTPUT_OF_CALL.match(call)}
        named = {call for call in trace["names"] if OUTPUT_OF_CALL.match(call)}
        for call, number in outputs.items():
            received = [x for operation in side.operations for x in operation["inputs"]]
            tensor = next((x for x in received if matches.are_equal(x, number)), None)
            if tensor is None or call in named:
                continue
            line = locate(side.list_users([tensor])[0])
            sentence = (
                f": call {int(call.split('/')[3]) + 1} of the model has no gradient in {name.upper()}, as under "
                f"torch.no_grad or after detach: its output enters the loss in {line}"
            )
            return Explanation("stopped_gradient", sentence, side=name)
    return None


def _receive_equal(a: Operation, b: Operation, matches: TensorMatches) -> bool:
    return any(matches.are_equal(x, y) for x in a["inputs"] for y in b["inputs"])
