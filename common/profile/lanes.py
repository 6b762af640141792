"""When a rank computes and reduces what in one step: lanes for a chart, from its trace.

Which layer a part of backward belongs to: in PyTorch its sequence number says it, which is that of the operation of the
forward pass whose gradients it computes, and so of the module in which that was called; in TensorFlow its name does.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from common.profile.trace import REDUCES, operations

Event = dict[str, Any]
Lane = list[tuple[str, float, float]]  # what, from and to when, in milliseconds from the beginning of the step

BACKWARD = "autograd::engine::evaluate_function: "
MODULE = "module: "
GAP = 0.005  # of the step: shorter ones between operations of one layer are not shown
STEP = "_train_step"  # the function of a TensorFlow strategy that is one step
Scope = tuple[str, ...]  # of an operation's name, without its own: ("bert", "layer_0", "attention")


def step_lanes(events: Sequence[Event], framework: str) -> dict[str, Lane] | None:
    """The lanes of the last profiled step: `forward` and `backward` by layer, `reduce`, `update`; None without any."""
    return _torch(events) if framework == "torch" else _tensorflow(events)


def _torch(events: Sequence[Event]) -> dict[str, Lane] | None:
    annotated = [event for event in events if event.get("cat") == "user_annotation"]
    forward, backward, update = (
        [event for event in annotated if event["name"] == name] for name in ("forward", "backward", "update")
    )
    if not forward or not backward or not update:
        return None
    began, ended = forward[-1]["ts"], _end(update[-1])
    inside = [event for event in events if began <= event["ts"] and _end(event) <= ended]
    layers = _layers([event for event in inside if event["name"].startswith(MODULE)])
    found = {
        "forward": [(name, event["ts"], _end(event)) for name, event in layers],
        "backward": _backward(inside, layers, GAP * (ended - began)),
        "reduce": _numbered(event for event in inside if REDUCES.search(event["name"])),
        "update": [("update", update[-1]["ts"], ended)],
    }
    return _from(began, found)


def _tensorflow(events: Sequence[Event]) -> dict[str, Lane] | None:
    steps = [event for event in events if event["name"] == STEP]
    if not steps:
        return None
    began, ended = steps[-1]["ts"], _end(steps[-1])
    inside = [each for each in operations(events) if began <= each[1]["ts"] < ended]
    scoped = {
        phase: [(_scope(event), event) for name, event in inside if name == phase] for phase in ("forward", "backward")
    }
    layer_of = _divided([scope for scope, _ in scoped["forward"] if scope])
    gap = GAP * (ended - began)
    found = {
        phase: _stretches(((layer_of.get(scope, phase), event) for scope, event in parts), gap)
        for phase, parts in scoped.items()
    }
    found["reduce"] = _numbered(event for name, event in inside if name == "reduce")
    found["update"] = _stretches((("update", event) for name, event in inside if name == "update"), gap)
    return _from(began, found)


def _from(began: float, lanes: dict[str, Lane]) -> dict[str, Lane]:
    """Milliseconds from the beginning of the step, where the lanes have microseconds of the trace."""
    return {
        lane: [(name, (start - began) / 1e3, (end - began) / 1e3) for name, start, end in parts]
        for lane, parts in lanes.items()
    }


def _scope(event: Event) -> Scope:
    name = event["name"].partition(":")[0].removeprefix("gradient_tape/")
    return tuple(name.split("/")[:-1])


def _divided(scopes: Sequence[Scope]) -> dict[Scope, str]:
    """The layer of the scope of each operation of the model: what has most of them is divided into its own parts."""
    model = Counter(scope[:1] for scope in scopes).most_common(1)[0][0] if scopes else ()
    within = [scope for scope in scopes if scope[:1] == model]
    part_of = {scope: scope[:2] for scope in within}
    while within:
        largest, count = Counter(part_of[scope] for scope in within).most_common(1)[0]
        inner = {scope: scope[: len(largest) + 1] for scope, part in part_of.items() if part == largest}
        if 2 * count <= len(within) or len(set(inner.values())) == 1:
            break
        part_of |= inner
    return {scope: part[-1] for scope, part in part_of.items() if part != model}


def _stretches(parts: Iterable[tuple[str, Event]], gap: float) -> Lane:
    """What begins one after the other and belongs to the same layer is one part of a lane. gap: in microseconds."""
    lane: Lane = []
    for layer, event in sorted(parts, key=lambda part: float(part[1]["ts"])):
        if lane and lane[-1][0] == layer and event["ts"] <= lane[-1][2] + gap:
            lane[-1] = (layer, lane[-1][1], max(lane[-1][2], _end(event)))
        else:
            lane.append((layer, event["ts"], _end(event)))
    return lane


@dataclass
class _Call:
    """A module's forward pass and those within it."""

    event: Event
    inner: list["_Call"] = field(default_factory=list)


def _layers(modules: Sequence[Event]) -> list[tuple[str, Event]]:
    """The modules that a model consists of, in order of their calls: its own parts, or parts that are all alike."""
    outermost = _Call({"ts": float("-inf"), "dur": float("inf"), "name": ""})
    stack = [outermost]
    for event in sorted(modules, key=lambda each: (each["ts"], -each["dur"])):
        while _end(stack[-1].event) < _end(event):
            stack.pop()
        call = _Call(event)
        stack[-1].inner.append(call)
        stack.append(call)
    model = outermost
    while len(model.inner) == 1:
        model = model.inner[0]
    found = [each.event for part in model.inner for each in (part.inner if _are_alike(part.inner) else [part])]
    names = [event["name"].removeprefix(MODULE) for event in found]
    counts, numbers = Counter(names), Counter[str]()
    labels = []
    for name in names:
        numbers[name] += 1
        labels.append(f"{name} {numbers[name]}" if counts[name] > 1 else name)
    return list(zip(labels, found, strict=True))


def _are_alike(calls: Sequence[_Call]) -> bool:
    return len(calls) > 1 and len({call.event["name"] for call in calls}) == 1


def _backward(events: Sequence[Event], layers: Sequence[tuple[str, Event]], gap: float) -> Lane:
    """Stretches of backward that belong to one layer. What belongs to none is left out."""
    layer_of: dict[int, str] = {}
    for event in events:
        number = event.get("args", {}).get("Sequence number")
        if number is not None and not event["name"].startswith(BACKWARD):
            for name, module in layers:
                if module["ts"] <= event["ts"] and _end(event) <= _end(module):
                    layer_of.setdefault(number, name)
    numbered = ((event["args"].get("Sequence number"), event) for event in events if event["name"].startswith(BACKWARD))
    return _stretches(((layer_of[number], event) for number, event in numbered if number in layer_of), gap)


def _numbered(reductions: Iterable[Event]) -> Lane:
    by_time = sorted(reductions, key=lambda event: float(event["ts"]))
    return [(f"reduction {number}", event["ts"], _end(event)) for number, event in enumerate(by_time, 1)]


def _end(event: Event) -> float:
    return float(event["ts"] + event["dur"])
