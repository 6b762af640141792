"""Where the time of a step goes, from the trace of a few steps that a rank writes with train.profile=true."""

import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PHASES = ("forward", "backward", "update", "reduce, exposed", "reduce, hidden", "other")
BACKWARD = re.compile(r"^gradient_tape/|(^|/)gradients/")  # the second: in the gradient of a tf.function
REDUCES = re.compile(r"(gloo|nccl|mpi):all_?reduce|reduce$|Collective(Reduce|Gather)|(^|/)(Nccl)?AllReduce")

Interval = tuple[float, float]


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The events of a Chrome trace that have a duration; `ts` and `dur` are in microseconds."""
    with gzip.open(path) as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return [event for event in events if event.get("ph") == "X" and event["dur"] > 0]


def split_step_time(events: Iterable[dict[str, Any]], framework: str) -> dict[str, float] | None:
    """The share of each of PHASES in the time from the first step's forward pass to the last step's update.

    A reduction is hidden while the rank computes, and exposed while it does nothing else; hidden time counts for what
    is computed too. `other` is what is none of these: batches, the loop, waiting. None where the rank does not train.
    """
    intervals = dict(_torch(events) if framework == "torch" else _tensorflow(events))
    if not intervals["forward"] or not intervals["update"]:
        return None
    spent: defaultdict[str, float] = defaultdict(float)
    began, ended = min(start for start, _ in intervals["forward"]), max(end for _, end in intervals["update"])
    for length, active in _moments(intervals, began, ended):
        phase = next((each for each in ("update", "backward", "forward") if each in active), None)
        if "reduce" in active:
            spent["reduce, hidden" if phase else "reduce, exposed"] += length
        spent[phase or "other"] += 0 if phase is None and "reduce" in active else length
    return {phase: spent[phase] / (ended - began) for phase in PHASES}


def _torch(events: Iterable[dict[str, Any]]) -> Iterator[tuple[str, list[Interval]]]:
    """Annotations of the main thread; in backward, which waits for reductions, what is computed in it."""
    events = list(events)
    annotated = [event for event in events if event.get("cat") == "user_annotation"]
    main = {event["tid"] for event in annotated if event["name"] == "backward"}
    yield "forward", [_interval(event) for event in annotated if event["name"] == "forward"]
    yield "update", [_interval(event) for event in annotated if event["name"] == "update"]
    backward = [_interval(event) for event in annotated if event["name"] == "backward"]
    operations = [_interval(event) for event in events if event.get("cat") == "cpu_op" and event["tid"] in main]
    yield "backward", [each for each in operations if any(start <= each[0] < end for start, end in backward)]
    yield "reduce", [_interval(event) for event in annotated if REDUCES.search(event["name"])]


def _tensorflow(events: Iterable[dict[str, Any]]) -> Iterator[tuple[str, list[Interval]]]:
    found: dict[str, list[Interval]] = {"forward": [], "backward": [], "update": [], "reduce": []}
    for phase, event in operations(events):
        found[phase].append(_interval(event))
    yield from found.items()


def operations(events: Iterable[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The operations of TensorFlow's first replica, with their phases, which their names ("name:Type") say."""
    for event in events:
        name, colon, kind = event["name"].partition(":")
        if not colon or not kind or kind[0] in ": " or " " in name or "replica_" in name:
            continue
        if REDUCES.search(name):
            yield "reduce", event
        elif name.startswith("update/"):
            yield "update", event
        else:
            yield "backward" if BACKWARD.search(name) else "forward", event


def _interval(event: dict[str, Any]) -> Interval:
    return event["ts"], event["ts"] + event["dur"]


def _moments(intervals: dict[str, list[Interval]], began: float, ended: float) -> Iterator[tuple[float, set[str]]]:
    """The lengths of the moments between two changes, and the phases that are active in each."""
    changes = [
        change
        for phase, found in intervals.items()
        for start, end in found
        for change in ((start, phase, 1), (end, phase, -1))
    ]
    active: Counter[str] = Counter()
    before = began
    for at, phase, change in sorted(changes):
        moment = min(max(at, began), ended)
        if moment > before:
            yield moment - before, {each for each in active if active[each]}
            before = moment
        active[phase] += change
