"""Lanes of one training step: when a rank runs each layer, reduction and update, from its Chrome trace.

A lane is the list of the time spans of one phase: forward, backward, reduce or update. All times of a trace are in
microseconds.

A part of backward belongs to the layer whose forward pass it differentiates. In PyTorch, an operation of backward has
the sequence number of the forward operation. In TensorFlow, the name of an operation contains its layer.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from common.profile.tensorflow_operations import find_layer, get_scope, join_device_copies, name_layers
from common.profile.trace import REDUCES, TraceEvent, classify_operations, get_end

BACKWARD = "autograd::engine::evaluate_function: "  # start of the names of PyTorch's operations of backward
MODULE = "module: "  # start of the names of events that Lockstep records for the forward pass of each PyTorch module
GAP = 0.005  # a pause between operations of one layer ends a span only if it is a larger share of the step
STEP = "_train_step"  # name of the tf.function that is one step


class LaneSpan(NamedTuple):
    """A span of time that a rank spends on one layer, reduction or update."""

    name: str  # such as "dense" or "reduction 2"
    start: float
    end: float


Lane = list[LaneSpan]


def build_step_lanes(events: Sequence[TraceEvent], framework: str) -> dict[str, Lane] | None:
    """Return the lanes of the last profiled step.

    Returns:
        Lanes "forward" and "backward" with a span for each layer, "reduce" and "update", in milliseconds from the start
        of the step; None if the trace has no complete step.
    """
    return _build_torch_lanes(events) if framework == "torch" else _build_tensorflow_lanes(events)


def _build_torch_lanes(events: Sequence[TraceEvent]) -> dict[str, Lane] | None:
    """Return the lanes from the annotations that PyTorch's side makes around each phase and each module."""
    annotations = [event for event in events if event.get("cat") == "user_annotation"]
    forward, backward, update = (
        [event for event in annotations if event["name"] == name] for name in ("forward", "backward", "update")
    )
    if not forward or not backward or not update:
        return None
    start, end = forward[-1]["ts"], get_end(update[-1])
    step_events = [event for event in events if start <= event["ts"] and get_end(event) <= end]
    layers = _find_layers([event for event in step_events if event["name"].startswith(MODULE)])
    lanes = {
        "forward": [LaneSpan(name, event["ts"], get_end(event)) for name, event in layers],
        "backward": _build_torch_backward(step_events, layers, GAP * (end - start)),
        # Only annotations count: on a GPU each annotation has a copy of another category.
        "reduce": _number_reductions(
            event for event in step_events if event.get("cat") == "user_annotation" and REDUCES.search(event["name"])
        ),
        "update": [LaneSpan("update", update[-1]["ts"], end)],
    }
    return _convert_to_milliseconds(lanes, start)


def _build_tensorflow_lanes(events: Sequence[TraceEvent]) -> dict[str, Lane] | None:
    """Return the lanes from the names of TensorFlow's operations."""
    steps = [event for event in events if event["name"] == STEP]
    if not steps:
        return None
    start, end = steps[-1]["ts"], get_end(steps[-1])
    operations = [(phase, event) for phase, event in classify_operations(events) if start <= event["ts"] < end]
    forward_scopes = [get_scope(event) for phase, event in operations if phase == "forward"]
    layers = name_layers([scope for scope in forward_scopes if scope])
    gap = GAP * (end - start)
    lanes = {
        phase: _join_spans(
            ((find_layer(layers, get_scope(event)) or phase, event) for kind, event in operations if kind == phase),
            gap,
        )
        for phase in ("forward", "backward")
    }
    lanes["reduce"] = _number_reductions(join_device_copies(event for phase, event in operations if phase == "reduce"))
    lanes["update"] = _join_spans((("update", event) for phase, event in operations if phase == "update"), gap)
    return _convert_to_milliseconds(lanes, start)


def _convert_to_milliseconds(lanes: Mapping[str, Lane], step_start: float) -> dict[str, Lane]:
    """Convert the microseconds of a trace to milliseconds from the start of the step."""
    return {
        lane: [LaneSpan(name, (start - step_start) / 1e3, (end - step_start) / 1e3) for name, start, end in spans]
        for lane, spans in lanes.items()
    }


def _join_spans(named_events: Iterable[tuple[str, TraceEvent]], gap: float) -> Lane:
    """Join consecutive events of one layer, with pauses of at most `gap` microseconds, into spans."""
    lane: Lane = []
    for layer, event in sorted(named_events, key=lambda named: float(named[1]["ts"])):
        if lane and lane[-1].name == layer and event["ts"] <= lane[-1].end + gap:
            lane[-1] = LaneSpan(layer, lane[-1].start, max(lane[-1].end, get_end(event)))
        else:
            lane.append(LaneSpan(layer, event["ts"], get_end(event)))
    return lane


@dataclass
class _ModuleCall:
    """Forward pass of a module, with the calls of its submodules."""

    event: TraceEvent
    inner_calls: list["_ModuleCall"] = field(default_factory=list)


def _find_layers(modules: Sequence[TraceEvent]) -> list[tuple[str, TraceEvent]]:
    """Return the layers of the model in order of their calls, with unique names.

    The layers are the direct submodules of the model. A submodule that consists of equal parts, such as an encoder, is
    replaced by these parts.
    """
    root = _ModuleCall({"ts": float("-inf"), "dur": float("inf"), "name": ""})
    stack = [root]  # the calls that contain the present one, from the outermost to the innermost
    for event in sorted(modules, key=lambda module: (module["ts"], -module["dur"])):
        while get_end(stack[-1].event) < get_end(event):
            stack.pop()
        call = _ModuleCall(event)
        stack[-1].inner_calls.append(call)
        stack.append(call)
    model = root
    while len(model.inner_calls) == 1:  # modules that only wrap another module have no layers of their own
        model = model.inner_calls[0]
    layers = [
        call.event
        for part in model.inner_calls
        for call in (part.inner_calls if _are_equal_parts(part.inner_calls) else [part])
    ]
    names = [event["name"].removeprefix(MODULE) for event in layers]
    counts, numbers = Counter(names), Counter[str]()
    labels = []
    for name in names:
        numbers[name] += 1
        labels.append(f"{name} {numbers[name]}" if counts[name] > 1 else name)
    return list(zip(labels, layers, strict=True))


def _are_equal_parts(calls: Sequence[_ModuleCall]) -> bool:
    return len(calls) > 1 and len({call.event["name"] for call in calls}) == 1


def _build_torch_backward(events: Sequence[TraceEvent], layers: Sequence[tuple[str, TraceEvent]], gap: float) -> Lane:
    """Return the spans of backward that belong to a layer; operations of no layer are left out."""
    layer_of: dict[int, str] = {}  # layer by the sequence number of its operations
    for event in events:
        number = event.get("args", {}).get("Sequence number")
        if number is not None and not event["name"].startswith(BACKWARD):
            for name, module in layers:
                if module["ts"] <= event["ts"] and get_end(event) <= get_end(module):
                    layer_of.setdefault(number, name)
    backward = [(event["args"].get("Sequence number"), event) for event in events if event["name"].startswith(BACKWARD)]
    return _join_spans(((layer_of[number], event) for number, event in backward if number in layer_of), gap)


def _number_reductions(reductions: Iterable[TraceEvent]) -> Lane:
    by_time = sorted(reductions, key=lambda event: float(event["ts"]))
    return [LaneSpan(f"reduction {number}", event["ts"], get_end(event)) for number, event in enumerate(by_time, 1)]
