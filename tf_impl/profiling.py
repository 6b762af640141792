"""Profiles of a rank's steps, as traces for ui.perfetto.dev or chrome://tracing."""

import gzip
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

TraceEvent = dict[str, object]  # an event in the Chrome trace event format, with times in microseconds


@contextmanager
def profile(path: Path) -> Iterator[None]:
    """Profile this process within the context, and write a gzip-compressed Chrome trace to a path."""
    with tempfile.TemporaryDirectory(prefix="lockstep-") as directory:
        tf.profiler.experimental.start(directory)
        try:
            yield
        finally:
            tf.profiler.experimental.stop()
        (space_file,) = Path(directory).rglob("*.xplane.pb")
        events = list(_convert_events(XSpace.FromString(space_file.read_bytes())))
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        json.dump({"displayTimeUnit": "ms", "traceEvents": events}, file)


def _convert_events(space: XSpace) -> Iterator[TraceEvent]:
    """Yield the events of a TensorFlow profile: each plane (a device) as a process, each of its lines as a thread."""
    for pid, plane in enumerate(space.planes):
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": plane.name}}
        for tid, line in enumerate(plane.lines):
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": line.name}}
            for event in line.events:
                yield {
                    "ph": "X",
                    "name": plane.event_metadata[event.metadata_id].name,
                    "pid": pid,
                    "tid": tid,
                    "ts": line.timestamp_ns / 1e3 + event.offset_ps / 1e6,
                    "dur": event.duration_ps / 1e6,
                }
