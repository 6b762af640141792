"""Operations through which only one of two scripts computes no gradient.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from common.diagnose.findings import Explanation
from common.diagnose.recorded.operations.operation_words import describe_lines
from common.diagnose.recorded.operations.recorded_traces import match_tensors, read_traces
from common.diagnose.recorded.operations.section_side import SectionSide
from common.diagnose.recorded.operations.tensor_matches import MOST_COMPARED, TensorMatches
from common.diagnose.recorded.record_pair import RecordPair
from common.recording.operation_format import Operation

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


def _receive_equal(a: Operation, b: Operation, matches: TensorMatches) -> bool:
    return any(matches.are_equal(x, y) for x in a["inputs"] for y in b["inputs"])
