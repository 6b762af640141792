"""When a rank of PyTorch's computes and reduces what in one step: lanes for a chart, from its trace.

Which layer a part of backward belongs to is known by its sequence number: that of the operation of the forward pass
whose gradients it computes, and so of the module in which that was called.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from common.bench.trace import REDUCES

Event = dict[str, Any]
Lane = list[tuple[str, float, float]]  # what, from and to when, in milliseconds from the beginning of the step

BACKWARD = "autograd::engine::evaluate_function: "
MODULE = "module: "


def timeline(events: Sequence[Event]) -> dict[str, Lane] | None:
    """The lanes of the last profiled step: `forward` and `backward` by layer, `reduce`, `update`; None without any."""
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
        "backward": _backward(inside, layers),
        "reduce": _numbered("reduction", [event for event in inside if REDUCES.search(event["name"])]),
        "update": [("update", update[-1]["ts"], ended)],
    }
    return {
        lane: [(name, (start - began) / 1e3, (end - began) / 1e3) for name, start, end in parts]
        for lane, parts in found.items()
    }


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


def _backward(events: Sequence[Event], layers: Sequence[tuple[str, Event]]) -> Lane:
    """Stretches of backward that belong to one layer. What belongs to none is left out."""
    layer_of: dict[int, str] = {}
    for event in events:
        number = event.get("args", {}).get("Sequence number")
        if number is not None and not event["name"].startswith(BACKWARD):
            for name, module in layers:
                if module["ts"] <= event["ts"] and _end(event) <= _end(module):
                    layer_of.setdefault(number, name)
    lane: Lane = []
    for event in events:
        if event["name"].startswith(BACKWARD):
            layer = layer_of.get(event["args"].get("Sequence number"))
            if layer is not None and lane and lane[-1][0] == layer:
                lane[-1] = (layer, lane[-1][1], _end(event))
            elif layer is not None:
                lane.append((layer, event["ts"], _end(event)))
    return lane


def _numbered(name: str, events: Sequence[Event]) -> Lane:
    by_time = sorted(events, key=lambda event: event["ts"])
    return [(f"{name} {number}", event["ts"], _end(event)) for number, event in enumerate(by_time, 1)]


def _end(event: Event) -> float:
    return float(event["ts"] + event["dur"])
