"""Reader for the scalars of a TensorBoard directory and of the directories below it."""

import os
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType

from common.compare.external.external_tables import ExternalRow, ExternalTable
from common.errors import UserError

EVENTS = "events.out.tfevents"  # part of the name of an event file


def read_directory(path: Path) -> ExternalTable:
    """Read all event files below a directory: one row for each step. Raises UserError if there is none.

    The name of a scalar starts with the name of its subdirectory, such as "validation/epoch_loss".
    """
    directories = sorted(directory for directory, _, files in os.walk(path) if any(EVENTS in name for name in files))
    if not directories:
        raise UserError(f"{path}: neither a run directory nor one of TensorBoard: no {EVENTS}* below it")
    rows: dict[int, dict[str, object]] = defaultdict(dict)
    for directory in directories:
        prefix = Path(directory).relative_to(path).as_posix()
        for tag, points in _read_scalars(directory).items():
            name = tag if prefix == "." else f"{prefix}/{tag}"
            for step, value in points:
                rows[step][name] = value
    if not rows:
        raise UserError(f"{path}: its event files have no scalars")
    names = {name for row in rows.values() for name in row}
    counts_epochs = all(name.rpartition("/")[2].startswith("epoch_") for name in names)
    return ExternalTable(
        "a TensorBoard directory",
        [ExternalRow(f"{path}: step {step}", {"step": step, **rows[step]}) for step in sorted(rows)],
        unit="epoch" if counts_epochs else "step",
        shift=1 if min(rows) == 0 else 0,
    )


def _read_scalars(directory: str) -> dict[str, list[tuple[int, float]]]:
    """Return the steps and values of each tag, stored as scalars or as tensors."""
    # With this module present, TensorBoard's reader does not import TensorFlow.
    sys.modules.setdefault("tensorboard.compat.notf", ModuleType("notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(directory, size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    scalars = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags["scalars"]}
    for tag in tags["tensors"]:
        points = [(event.step, make_ndarray(event.tensor_proto)) for event in events.Tensors(tag)]
        if all(value.ndim == 0 and value.dtype.kind == "f" for _, value in points):
            scalars[tag] = [(step, float(value)) for step, value in points]
    return scalars
