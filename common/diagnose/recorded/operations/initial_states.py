"""States with which recurrent layers begin, if only one of two scripts passes them.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from common.diagnose.findings import Explanation
from common.diagnose.layer_match import LayerMatch
from common.diagnose.layout_conversion import RECURRENT
from common.diagnose.recorded.operations.operation_words import locate
from common.diagnose.recorded.operations.recorded_traces import read_traces
from common.diagnose.recorded.record_pair import RecordPair
from common.recording.operation_format import Operation, OperationTrace


def explain_initial_state(pair: RecordPair, layer: LayerMatch) -> Explanation | None:
    """Explain other outputs of a recurrent layer by a state that only one script passes to it; else None."""
    traces = read_traces(pair) if layer.kind in RECURRENT else None
    if traces is None:
        return None
    a, b = (_find_call(trace, path) for trace, path in zip(traces, (layer.path_a, layer.path_b), strict=True))
    if a is None or b is None:
        return None
    has_states = [_receives_state(trace, call) for trace, call in zip(traces, (a, b), strict=True)]
    if has_states[0] == has_states[1]:
        return None
    name, call = ("A", a) if has_states[0] else ("B", b)
    sentence = f"{layer.title}: only {name}'s layer begins with a state that its script passes, in {locate(call)}"
    return Explanation("recurrent_layer", sentence)


def _find_call(trace: OperationTrace, path: str) -> Operation | None:
    """Return the operation of a layer; None if it is not recorded as one operation."""
    output = trace["names"].get(f"layer/{path}/output")
    return next((x for x in trace["operations"] if output is not None and output in x["outputs"]), None)


def _receives_state(trace: OperationTrace, call: Operation) -> bool:
    """Check whether a layer receives other numbers than its input and its weights, and whether they are not 0."""
    weights = {number for name, number in trace["names"].items() if name.startswith("weight/")}
    others = [trace["tensors"][x] for x in call["inputs"][1:] if x not in weights]
    return any("float" in tensor["dtype"] and tensor["norm"] != 0 for tensor in others)
