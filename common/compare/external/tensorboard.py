"""Reader for the scalars of a TensorBoard directory and of the directories below it.

Keras writes two kinds of tags. The step of `epoch_loss` is the number of an epoch, from 0. The step of `batch_loss` and
of `evaluation_loss_vs_iterations` is the number of a training step, from 1.
"""

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from common.compare.external.external_tables import ExternalRow, ExternalTable
from common.errors import UserError

EVENTS = "events.out.tfevents"  # part of the name of an event file
Scalars = dict[str, dict[int, float]]  # for each tag, the values by step


def read_directory(path: Path, loss_tag: str | None) -> ExternalTable:
    """Read all event files below a directory: one row for each step, or for each epoch of Keras.

    The name of a scalar starts with the name of its subdirectory, such as "validation/epoch_loss".

    Args:
        path: The directory.
        loss_tag: The tag that the user has named as the loss. This tag decides between steps and epochs.

    Raises:
        UserError: There is no event file, or the steps that the mean loss covers are unknown.
    """
    directories = sorted(directory for directory, _, files in os.walk(path) if any(EVENTS in name for name in files))
    if not directories:
        raise UserError(
            f"{path}: neither a run directory nor a TensorBoard directory with {EVENTS}* files; for an MLflow "
            "run, name a file in metrics/"
        )
    scalars: Scalars = {}
    left_out: Counter[str] = Counter()
    for directory in directories:
        prefix = Path(directory).relative_to(path).as_posix()
        for tag, values in _read_directory_scalars(Path(directory), left_out).items():
            scalars[tag if prefix == "." else f"{prefix}/{tag}"] = values
    if not any(scalars.values()):
        raise UserError(f"{path}: its event files have no scalars")
    table = _build_table(path, scalars, loss_tag)
    table.notes += [f"{count} values left out, because {reason}" for reason, count in left_out.items()]
    return table


def _build_table(path: Path, scalars: Scalars, loss_tag: str | None) -> ExternalTable:
    """Return a table of the tags with the unit of the loss: epochs or steps."""
    epoch_tags = [tag for tag in scalars if _get_name(tag).startswith("epoch_")]
    batch_losses = [tag for tag in scalars if _get_name(tag) == "batch_loss"]
    epoch_ends = _find_epoch_ends(scalars, epoch_tags, batch_losses)
    if loss_tag in batch_losses and epoch_tags and epoch_ends is None:
        raise UserError(
            f"{path}: columns.loss={loss_tag}: Keras's mean since the start of an epoch, but it is unknown at which "
            "step an epoch starts; name a tag epoch_loss, or log each step with update_freq=1"
        )
    if loss_tag in scalars:
        counts_epochs = loss_tag in epoch_tags
    else:
        counts_epochs = bool(epoch_tags) and not (batch_losses and epoch_ends)
    tags = [tag for tag in scalars if (tag in epoch_tags) == counts_epochs]
    others = [tag for tag in scalars if tag not in tags]
    unit, other_unit = ("epoch", "step") if counts_epochs else ("step", "epoch")
    return ExternalTable(
        "a TensorBoard directory",
        _collect_rows(path, scalars, tags),
        unit=unit,
        epoch_ends=epoch_ends,
        notes=[f"{len(others)} tags that count {other_unit}s left out: {', '.join(others)[:200]}"] if others else [],
    )


def _collect_rows(path: Path, scalars: Scalars, tags: Iterable[str]) -> list[ExternalRow]:
    rows: dict[int, dict[str, object]] = defaultdict(dict)
    for tag in tags:
        for step, value in scalars[tag].items():
            rows[step][tag] = value
    return [ExternalRow(f"{path}: step {step}", {"step": step, **rows[step]}) for step in sorted(rows)]


def _find_epoch_ends(scalars: Scalars, epoch_tags: list[str], batch_losses: list[str]) -> list[int] | None:
    """Return the last step of each epoch of Keras; None if it is unknown.

    Keras evaluates at the end of an epoch. Without an evaluation of each epoch, the steps are divided among the epochs
    if the directory has every step.
    """
    epochs = max((len(scalars[tag]) for tag in epoch_tags), default=0)
    for tag in scalars:
        if _get_name(tag) == "evaluation_loss_vs_iterations" and len(scalars[tag]) == epochs:
            return sorted(scalars[tag])
    for tag in batch_losses:
        steps = sorted(scalars[tag])
        if epochs and steps == list(range(1, len(steps) + 1)) and len(steps) % epochs == 0:
            length = len(steps) // epochs
            return list(range(length, len(steps) + 1, length))
    return None


def _get_name(tag: str) -> str:
    return tag.rpartition("/")[2]


def _read_directory_scalars(directory: Path, left_out: Counter[str]) -> Scalars:
    """Return the scalars of the event files of a directory.

    A later file continues an earlier one, unless it starts again from the earlier one's first step. It then belongs to
    another run, and the earlier values are left out.

    Args:
        directory: The directory.
        left_out: Receives the number of values that are left out, by the reason.
    """
    scalars: Scalars = {}
    for file in sorted(path for path in directory.iterdir() if EVENTS in path.name):
        for tag, points in _read_scalars(file).items():
            values, earlier = dict(points), scalars.get(tag, {})
            left_out["a later one of the tag has the same step"] += len(points) - len(values)
            if values and earlier and min(values) <= min(earlier):
                left_out[f"they belong to an earlier run than {file.name}"] += len(earlier)
                earlier = {}
            left_out["a later one of the tag has the same step"] += len(values.keys() & earlier.keys())
            scalars[tag] = {**earlier, **values}
    left_out += Counter()  # drops the counts of zero
    return scalars


def _read_scalars(file: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the steps and values of each tag of an event file, stored as scalars or as tensors."""
    # With this module present, TensorBoard's reader does not import TensorFlow.
    sys.modules.setdefault("tensorboard.compat.notf", ModuleType("notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(str(file), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    scalars = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags["scalars"]}
    for tag in tags["tensors"]:
        points = [(event.step, make_ndarray(event.tensor_proto)) for event in events.Tensors(tag)]
        if all(value.ndim == 0 and value.dtype.kind == "f" for _, value in points):
            scalars[tag] = [(step, float(value)) for step, value in points]
    return scalars
