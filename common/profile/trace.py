"""Shares of the phases of a training step, from the Chrome trace that a rank writes with train.profile=true."""

import gzip
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypedDict

# A reduction sums gradients over the replicas. It is hidden while the rank computes something else.
PHASES = ("forward", "backward", "update", "reduce, exposed", "reduce, hidden", "other")
# The names of TensorFlow's operations of backward. The second alternative matches the gradient of a tf.function.
BACKWARD = re.compile(r"^gradient_tape/|(^|/)gradients/")
REDUCES = re.compile(r"(gloo|nccl|mpi):all_?reduce|reduce$|Collective(Reduce|Gather)|(^|/)(Nccl)?AllReduce")

# Limits of the decompressed trace, which may come from somebody else. A value, such as {}, takes up to 100 bytes.
MAX_BYTES, MAX_VALUES = 64 << 20, 4 << 20

Interval = tuple[float, float]  # start and end in microseconds


class _EventFields(TypedDict):
    name: str
    ts: float  # start, in microseconds
    dur: float  # duration, in microseconds


class TraceEvent(_EventFields, total=False):
    """Event of a Chrome trace that has a duration."""

    ph: str  # kind of event; "X" has a duration
    cat: str  # category, such as "user_annotation" or "cpu_op"
    pid: int  # number of the process, which may be a device
    tid: int  # number of the thread
    args: dict[str, int]  # further values, such as "Sequence number"


def read_trace(path: Path) -> list[TraceEvent]:
    """Return the events of a gzipped Chrome trace that have a duration. Raise ValueError if it is too large."""
    with gzip.open(path) as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"has more than {MAX_BYTES >> 20} MiB, which no five steps have")
    if sum(map(content.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise ValueError(f"has more than {MAX_VALUES:,} values, which no five steps have")
    events: list[TraceEvent] = json.loads(content)["traceEvents"]
    return [event for event in events if event.get("ph") == "X" and event["dur"] > 0]


def split_step_time(events: Iterable[TraceEvent], framework: str) -> dict[str, float] | None:
    """Return the share of each phase in the time between the first forward pass and the end of the last update.

    A reduction is hidden while the rank computes, and exposed while the rank does nothing else. Hidden time also counts
    for the computation. "other" is the remaining time: loading batches, the training loop, waiting.

    Returns:
        A share between 0 and 1 for each of PHASES; None if the trace has no forward pass or no update.
    """
    intervals = _find_torch_intervals(list(events)) if framework == "torch" else _find_tensorflow_intervals(events)
    if not intervals["forward"] or not intervals["update"]:
        return None
    durations: defaultdict[str, float] = defaultdict(float)  # microseconds by phase
    start, end = min(first for first, _ in intervals["forward"]), max(last for _, last in intervals["update"])
    for length, active in _iterate_moments(intervals, start, end):
        computing = next((phase for phase in ("update", "backward", "forward") if phase in active), None)
        if "reduce" in active:
            durations["reduce, hidden" if computing else "reduce, exposed"] += length
        if computing or "reduce" not in active:
            durations[computing or "other"] += length
    return {phase: durations[phase] / (end - start) for phase in PHASES}


def _find_torch_intervals(events: list[TraceEvent]) -> dict[str, list[Interval]]:
    """Return the intervals of each phase, from PyTorch's annotations.

    The annotation of backward includes waiting for reductions. Backward is therefore measured by the operations that
    run on its thread.
    """
    annotations = [event for event in events if event.get("cat") == "user_annotation"]
    by_name = {
        phase: [_get_interval(event) for event in annotations if event["name"] == phase]
        for phase in ("forward", "backward", "update")
    }
    backward_threads = {event["tid"] for event in annotations if event["name"] == "backward"}
    operations = [
        _get_interval(event) for event in events if event.get("cat") == "cpu_op" and event["tid"] in backward_threads
    ]
    in_backward = [
        interval for interval in operations if any(start <= interval[0] < end for start, end in by_name["backward"])
    ]
    reductions = [_get_interval(event) for event in annotations if REDUCES.search(event["name"])]
    return by_name | {"backward": in_backward, "reduce": reductions}


def _find_tensorflow_intervals(events: Iterable[TraceEvent]) -> dict[str, list[Interval]]:
    intervals: dict[str, list[Interval]] = {"forward": [], "backward": [], "update": [], "reduce": []}
    for phase, event in classify_operations(events):
        intervals[phase].append(_get_interval(event))
    return intervals


def classify_operations(events: Iterable[TraceEvent]) -> Iterator[tuple[str, TraceEvent]]:
    """Yield each operation of TensorFlow's first replica with its phase, judged by the operation's "name:Type"."""
    for event in events:
        name, colon, kind = event["name"].partition(":")
        # Not operations of the first replica: names without a type, C++ functions ("a::b"), texts, other replicas.
        if not colon or not kind or kind[0] in ": " or " " in name or "replica_" in name:
            continue
        if REDUCES.search(name):
            yield "reduce", event
        elif name.startswith("update/"):
            yield "update", event
        else:
            yield "backward" if BACKWARD.search(name) else "forward", event


def get_end(event: TraceEvent) -> float:
    """Return the end of an event in microseconds."""
    return float(event["ts"] + event["dur"])


def _get_interval(event: TraceEvent) -> Interval:
    return event["ts"], get_end(event)


def _iterate_moments(
    intervals: dict[str, list[Interval]], start: float, end: float
) -> Iterator[tuple[float, set[str]]]:
    """Divide the time from `start` to `end` wherever a phase begins or ends.

    Yield the length of each part in microseconds, and the phases that are active in it.
    """
    changes = [
        change
        for phase, phase_intervals in intervals.items()
        for first, last in phase_intervals
        for change in ((first, phase, 1), (last, phase, -1))
    ]
    active: Counter[str] = Counter()  # number of open intervals of each phase
    previous = start
    for time, phase, change in sorted(changes):
        clipped = min(max(time, start), end)
        if clipped > previous:
            yield clipped - previous, {phase for phase in active if active[phase]}
            previous = clipped
        active[phase] += change
