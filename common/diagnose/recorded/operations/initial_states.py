"""States that scripts pass to recurrent layers: to the first call, and from call to call.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from collections.abc import Sequence

from common.diagnose.findings import Explanation
from common.diagnose.layer_match import LayerMatch
from common.diagnose.layout_conversion import RECURRENT
from common.diagnose.recorded.operations.operation_words import locate
from common.diagnose.recorded.operations.recorded_traces import read_traces
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.recorded_side import RecordedSide
from common.recording.operation_format import Operation, OperationTrace

Statistics = tuple[float | None, ...]


def explain_initial_state(pair: RecordPair, layer: LayerMatch) -> Explanation | None:
    """Explain other outputs of a recurrent layer by a state that only one script passes to it; else None."""
    traces = read_traces(pair) if layer.kind in RECURRENT else None
    return None if traces is None else _explain_first_state(traces, layer)


def _explain_first_state(traces: tuple[OperationTrace, OperationTrace], layer: LayerMatch) -> Explanation | None:
    a, b = (_find_call(trace, path) for trace, path in zip(traces, (layer.path_a, layer.path_b), strict=True))
    if a is None or b is None:
        return None
    has_states = [bool(_list_states(trace, call)) for trace, call in zip(traces, (a, b), strict=True)]
    if has_states[0] == has_states[1]:
        return None
    name, call = ("A", a) if has_states[0] else ("B", b)
    sentence = f"{layer.title}: only {name}'s layer begins with a state that its script passes, in {locate(call)}"
    return Explanation("recurrent_layer", sentence)


def explain_passed_states(pair: RecordPair) -> Explanation | None:
    """Explain other outputs by a recurrent layer that receives the state of its last call in only one script.

    Return None if there is none, or if both scripts do not call the layer equally often.
    """
    traces = read_traces(pair)
    if traces is None:
        return None
    for layer in (layer for layer in pair.models.layers if layer.kind in RECURRENT):
        if (first := _explain_first_state(traces, layer)) is not None:
            return first
        paths = layer.path_a, layer.path_b
        a, b = (_list_calls(side, path) for side, path in zip(pair.sides, paths, strict=True))
        looping = max(a, b, key=len)
        is_whole = [len(calls) == 1 and _has_steps(trace, calls[0], len(looping))
                    for trace, calls in zip(traces, (a, b), strict=True)]  # fmt: skip
        for index in range(1, len(looping) if len(a) == len(b) or any(is_whole) else 0):
            sources = [
                f"the state that call {index} returned" if whole else _find_source(trace, calls, index)
                for trace, calls, whole in zip(traces, (a, b), is_whole, strict=True)
            ]
            if all(sources) and sources[0] != sources[1]:
                passed = [
                    f"{name} {'goes through the sequence at once' if whole else f'passes {source}'}"
                    for name, source, whole in zip("AB", sources, is_whole, strict=True)
                ]
                sentence = f"call {index + 1} of {layer.title}: {', and '.join(passed)}, in {locate(looping[index])}"
                return Explanation("recurrent_layer", sentence)
    return None


def _has_steps(trace: OperationTrace, call: Operation, count: int) -> bool:
    """Check whether a call receives a sequence of several time steps."""
    return count > 1 and count in trace["tensors"][call["inputs"][0]]["shape"][:2]


def _list_calls(side: RecordedSide, path: str) -> list[Operation]:
    """Return the operations that receive weights of a layer."""
    trace = side.record.ranks[0].operations
    assert trace is not None
    names = {
        f"weight/{name}"
        for facts in side.layers
        if facts["path"] == path or facts["path"].startswith((f"{path}.", f"{path}/"))
        for name in facts["variables"].values()
    }
    weights = {trace["names"][name] for name in names if name in trace["names"]}
    return [x for x in trace["operations"] if weights & {*x["inputs"]}]


def _find_source(trace: OperationTrace, calls: Sequence[Operation], index: int) -> str:
    """Return words for the state that a call receives after the first one; empty if it is another tensor."""
    states, first = ({*_list_states(trace, calls[x])} for x in (index, 0))
    returned = {_read_statistics(trace, x) for x in calls[index - 1]["outputs"]}
    if not states:
        return "no state"
    if states & returned:
        return f"the state that call {index} returned"
    return "the state of the first call again" if states & first else ""


def _list_states(trace: OperationTrace, call: Operation) -> list[Statistics]:
    """Return the statistics of the states that a layer receives besides its input and its weights, if not 0.

    A mask is no state.
    """
    weights = {number for name, number in trace["names"].items() if name.startswith("weight/")}
    numbers = [x for x in call["inputs"][1:] if x not in weights and "float" in trace["tensors"][x]["dtype"]]
    return [_read_statistics(trace, x) for x in numbers if trace["tensors"][x]["norm"] != 0]


def _read_statistics(trace: OperationTrace, number: int) -> Statistics:
    tensor = trace["tensors"][number]
    return tensor["norm"], tensor["sum"], tensor["minimum"], tensor["maximum"]


def _find_call(trace: OperationTrace, path: str) -> Operation | None:
    """Return the operation of a layer; None if it is not recorded as one operation."""
    output = trace["names"].get(f"layer/{path}/output")
    return next((x for x in trace["operations"] if output is not None and output in x["outputs"]), None)
