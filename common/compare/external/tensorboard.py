"""Reads the scalars of a TensorBoard directory; those of a directory below it have its name before theirs."""

import os
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

from common.compare.external.names import Table
from common.errors import UserError

EVENTS = "events.out.tfevents"


def read_directory(path: Path) -> Table:
    """The rows of all event files below a directory: one for each step. Raises UserError where there is none."""
    places = sorted(place for place, _, files in os.walk(path) if any(EVENTS in name for name in files))
    if not places:
        raise UserError(f"{path}: neither a run directory nor one of TensorBoard: no {EVENTS}* below it")
    rows: dict[int, dict[str, Any]] = defaultdict(dict)
    for place in places:
        below = os.path.relpath(place, path)
        for tag, points in _scalars(place).items():
            name = tag if below == "." else f"{below}/{tag}"
            for step, value in points:
                rows[step][name] = value
    if not rows:
        raise UserError(f"{path}: its event files have no scalars")
    names = {name for row in rows.values() for name in row}
    epochs = all(name.rpartition("/")[2].startswith("epoch_") for name in names)
    table = Table(
        "a TensorBoard directory", [(f"{path}: step {step}", {"step": step, **rows[step]}) for step in sorted(rows)]
    )
    if epochs:
        table.unit = "epoch"
    table.shift = 1 if min(rows) == 0 else 0
    return table


def _scalars(place: str) -> dict[str, list[tuple[int, float]]]:
    """The steps and values of each tag, however they were written."""
    sys.modules.setdefault("tensorboard.compat.notf", ModuleType("notf"))  # its reader then imports no TensorFlow
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(place, size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    found = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags["scalars"]}
    for tag in tags["tensors"]:
        points = [(event.step, make_ndarray(event.tensor_proto)) for event in events.Tensors(tag)]
        if all(value.ndim == 0 and value.dtype.kind == "f" for _, value in points):
            found[tag] = [(step, float(value)) for step, value in points]
    return found
