"""Steps and epochs of other programs' files: steps that start again in each epoch, and the last step of each epoch."""

import math
from collections.abc import Mapping

import numpy as np

from common.compare.external.external_tables import ExternalTable
from common.compare.external.external_values import is_absent, read_number


def count_steps_before(table: ExternalTable, columns: Mapping[str, str]) -> list[int]:
    """Return, for each row, the number of steps of the earlier epochs if steps start again in each epoch; else 0.

    An epoch has last - first + interval steps: the steps of its last and first rows, and the interval between its
    first two rows.
    """
    offsets = [0] * len(table.rows)
    epoch_column = _find_epoch_column(table)
    if epoch_column is None or columns.get("step") in (None, epoch_column):
        return offsets
    offset, epoch, epoch_steps = 0, math.nan, list[float]()
    for number, (position, values) in enumerate(table.rows):
        entries = [values.get(name) for name in (epoch_column, columns["step"])]
        if not any(map(is_absent, entries)):
            step = read_number(position, columns, "step", values)
            row_epoch = read_number(position, {"epoch": epoch_column}, "epoch", values)
            if row_epoch > epoch and epoch_steps and step < epoch_steps[-1]:
                interval = epoch_steps[1] - epoch_steps[0] if len(epoch_steps) > 1 else 1.0
                offset += int(epoch_steps[-1] - epoch_steps[0] + interval)
                epoch_steps = []
            epoch = row_epoch
            epoch_steps += [step] if step not in epoch_steps[-1:] else []
        offsets[number] = offset
    if offset:
        table.notes.append(f"{columns['step']} starts again in each epoch; counted on from the epoch before")
    return offsets


def find_epoch_ends(table: ExternalTable, columns: Mapping[str, str], steps: np.ndarray) -> list[int] | None:
    """Return the last step of each epoch; None if it is unknown, for example because steps are missing.

    Args:
        table: The rows. If a row is a step, the column `epoch` may have the number of its epoch.
        columns: The column of each metric.
        steps: The sorted steps that have a loss, int64 [n].
    """
    if table.epoch_ends is not None or table.unit == "epoch" or "loss" not in columns:
        return table.epoch_ends
    epoch_column = _find_epoch_column(table)
    if epoch_column is None or not np.array_equal(steps, np.arange(1, len(steps) + 1)):
        return None
    epochs = [
        read_number(row.position, {"epoch": epoch_column}, "epoch", row.values)
        for row in table.rows
        if not is_absent(row.values.get(columns["loss"]))
    ]
    if len(epochs) != len(steps) or not all(epoch.is_integer() for epoch in epochs):
        return None
    lengths = np.unique(epochs, return_counts=True)[1]
    is_in_order = epochs == sorted(epochs) and epochs[0] in (0, 1) and epochs[-1] - epochs[0] + 1 == len(lengths)
    is_complete = lengths[-1] == lengths[0]  # an epoch that was interrupted is shorter
    return np.cumsum(lengths if is_complete else lengths[:-1]).tolist() if is_in_order else None


def _find_epoch_column(table: ExternalTable) -> str | None:
    return next((name for row in table.rows for name in row.values if name.lower() == "epoch"), None)
