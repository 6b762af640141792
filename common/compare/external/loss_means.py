"""Losses that are means of several steps, in the files of other programs.

The loss of a row with the window w is the mean of the losses of w steps, the last of which is the row's own step.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from common.compare.external.external_tables import ExternalTable


class LossMeans(NamedTuple):
    """Windows of the losses of a run."""

    windows: np.ndarray | None  # int64, as long as the steps; None if each loss is that of one step
    weighs_examples: bool  # whether the mean weighs each example equally, rather than each step
    note: str  # a sentence for the reader of a report; empty if each loss belongs to one step


SINGLE_STEPS = LossMeans(None, False, "")


def find_loss_means(table: ExternalTable, columns: Mapping[str, str], steps: np.ndarray) -> LossMeans:
    """Find the steps that each mean loss covers.

    Args:
        table: The file.
        columns: The column of each metric.
        steps: The sorted steps that have a loss, int64 [n].
    """
    column = columns.get("loss", "").lower()
    if table.unit == "epoch" or not len(steps):
        return SINGLE_STEPS
    if column.endswith("batch_loss") and table.epoch_ends:
        steps_before = np.concatenate(([0], table.epoch_ends))  # the last step before each epoch
        windows = steps - steps_before[np.searchsorted(steps_before, steps) - 1]
        return LossMeans(windows, True, f"{column} is Keras's mean since the start of the epoch")
    if column.endswith("_epoch"):
        return LossMeans(np.diff(steps, prepend=0), True, f"{column} is the mean of an epoch")
    if _has_means_of_steps(table, column):
        windows = np.diff(steps, prepend=0)
        if windows.max() > 1:
            counts = " to ".join(str(count) for count in sorted({int(windows.min()), int(windows.max())}))
            note = f"its loss is the mean of {counts} steps, since the row before"
            if len(steps) > 1 and windows[0] > windows[1]:
                windows[0] = 0  # unknown, so the row is not compared
                note += f"; the row of step {steps[0]} is left out, because the file may lack rows before it"
            return LossMeans(windows, False, note)
    return SINGLE_STEPS


def _has_means_of_steps(table: ExternalTable, loss_column: str) -> bool:
    """Check whether mmcv or a Hugging Face Trainer has logged the loss, to a file, TensorBoard, W&B or a list."""
    names = {name for row in table.rows for name in row.values}
    if loss_column == "train/loss":
        return bool(names & {"train/epoch", "train/global_step"})
    return loss_column == "loss" and (table.has_means_of_steps or "train_runtime" in names)
