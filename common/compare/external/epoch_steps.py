"""Steps and epochs in the files of other programs: steps that restart in each epoch, the last step of each epoch."""

import math
from collections.abc import Mapping
from itertools import groupby

import numpy as np

from common.compare.external.external_tables import ExternalRow, ExternalTable
from common.compare.external.external_values import is_absent, read_number


def recognize_steps(table: ExternalTable, columns: dict[str, str]) -> None:
    """Recognize rows that are epochs, and number the rows as steps if no column does.

    Without a column of steps, a row is an epoch, unless most epochs have several rows with a loss.
    """
    if "step" not in columns:
        if table.unit == "step":
            _number_rows(table, columns, "no column for the step")
    elif columns["step"].lower() == "epoch":
        table.unit = "epoch"
        if _has_rows_of_one_epoch(table, columns):
            table.unit = "step"
            _number_rows(table, columns, "several rows of an epoch, and no column for the step")


def _has_rows_of_one_epoch(table: ExternalTable, columns: Mapping[str, str]) -> bool:
    """Check whether most epochs have several different rows with a loss. A single one may be an epoch trained again."""
    rows = [row.values for row in table.rows if not is_absent(row.values.get(columns.get("loss", "")))]
    epochs = [list(epoch) for _, epoch in groupby(rows, lambda row: row.get(columns["step"]))]
    several = [epoch for epoch in epochs if any(row != epoch[0] for row in epoch)]
    return 2 * len(several) > len(epochs)


def _number_rows(table: ExternalTable, columns: dict[str, str], reason: str) -> None:
    """Number the rows with a loss as steps; all rows if there is no column of losses."""
    columns["step"] = "number of the row"
    loss = columns.get("loss")
    rows, number = [], 0
    for position, values in table.rows:
        number += loss is None or not is_absent(values.get(loss))
        rows.append(ExternalRow(position, values | {columns["step"]: number}))
    table.rows = rows
    table.notes.append(f"{reason}: each row{'' if loss is None else f' with {loss}'} counts as a step")


def count_steps_before(table: ExternalTable, columns: Mapping[str, str]) -> list[int]:
    """Return, for each row, the number of steps of the earlier epochs if steps start again in each epoch; else 0.

    The length of an epoch is its largest step, minus its smallest step, plus the interval between its two smallest
    steps. If the epoch has a single row, its length is the step of this row.
    """
    offsets = [0] * len(table.rows)
    epoch_column = _find_epoch_column(table)
    if epoch_column is None or columns.get("step") in (None, epoch_column):
        return offsets
    offset, epoch, epoch_steps = 0, math.nan, set[float]()
    offset_by_epoch: dict[float, int] = {}  # rows of an earlier epoch may follow, such as those of its evaluation
    had_loss = False
    for number, (position, values) in enumerate(table.rows):
        entries = [values.get(name) for name in (epoch_column, columns["step"])]
        if not any(map(is_absent, entries)):
            step = read_number(position, columns, "step", values)
            row_epoch = read_number(position, {"epoch": epoch_column}, "epoch", values)
            if not math.isfinite(step):
                continue  # an error, which is raised when the values of the row are read
            has_loss = not is_absent(values.get(columns.get("loss", "")))
            if row_epoch in offset_by_epoch and row_epoch != epoch:
                offsets[number] = offset_by_epoch[row_epoch]
                continue
            if row_epoch > epoch and (step < max(epoch_steps) or ({step} == epoch_steps and has_loss and had_loss)):
                first, second, *_ = [*sorted(epoch_steps), 2 * min(epoch_steps) or 1]
                offset += int(max(epoch_steps) - first + second - first)
                epoch_steps = set()
            epoch, had_loss = row_epoch, has_loss
            offset_by_epoch[epoch] = offset
            epoch_steps.add(step)
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
