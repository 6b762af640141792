"""Conversion of another program's file or directory to a run whose data, weights and optimizer are unknown."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from common.compare.columns import Columns
from common.compare.external.external_tables import ExternalTable, read_file
from common.compare.external.tensorboard import read_directory
from common.compare.run_files import RunSummary
from common.compare.runs import METRICS, OPTIONAL_EVALUATION_METRICS, OPTIONAL_METRICS, Run
from common.errors import UserError

ABSENT = ("", "na", "n/a", "none", "null")  # entries of a row that mean "no value", in lower case
TRAINING_COLUMNS = (*METRICS, *OPTIONAL_METRICS)
EVALUATION_COLUMNS = ("eval_loss", "eval_accuracy", "examples")
# For each metric, the lower-case names of its column in other programs, the most specific first.
KNOWN_COLUMNS = {
    "step": ("step", "steps", "global_step", "train/global_step", "iteration", "iter", "epoch"),
    "loss": (
        "loss", "train_loss_step", "train_loss", "train/loss", "training_loss", "train/epoch_loss", "train_loss_epoch",
    ),
    "grad_norm": ("grad_norm", "train/grad_norm", "gradient_norm", "grad_2.0_norm_total"),
    "learning_rate": ("learning_rate", "lr", "train/learning_rate", "lr-adamw", "lr-adam", "lr-sgd"),
    "examples": ("examples", "samples", "train_samples"),
    "tokens": ("tokens", "num_input_tokens_seen", "train_tokens"),
    "seconds": ("seconds", "elapsed", "time"),
    "eval_loss": (
        "eval_loss", "val_loss", "validation_loss", "eval/loss", "validation/loss", "val/loss", "validation/epoch_loss",
    ),
    "eval_accuracy": (
        "eval_accuracy", "val_accuracy", "val_acc", "validation_accuracy", "eval/accuracy", "validation/accuracy",
        "val/acc", "validation/epoch_accuracy",
    ),
}  # fmt: skip


def load_external_run(name: str, path: Path, chosen_columns: Mapping[str, str | None]) -> Run:
    """Read an external run.

    Args:
        name: The label of the run.
        path: A file or a TensorBoard directory.
        chosen_columns: The columns that the user has named, by metric; None if the name is to be guessed.

    Returns:
        A run with an empty config.

    Raises:
        UserError: The file cannot be read; the message names the line and the expected formats.
    """
    table = read_directory(path) if path.is_dir() else read_file(path)
    names = dict.fromkeys(column for row in table.rows for column in row.values)
    columns = match_columns(str(path), names, chosen_columns)
    if table.unit == "epoch" and "step" not in columns:
        raise UserError(f"{path}: no column for the step; name it with columns.step=NAME")
    steps_before = count_steps_before(table, columns)
    steps, metrics = _collect_columns(table, columns, steps_before, "loss", TRAINING_COLUMNS)
    eval_steps, evaluated = _collect_columns(table, columns, steps_before, "eval_loss", EVALUATION_COLUMNS)
    loss, accuracy = metrics["loss"], evaluated["eval_accuracy"]
    evals = {metric: np.full(len(eval_steps), np.nan) for metric in OPTIONAL_EVALUATION_METRICS}
    evals |= {"loss": evaluated["eval_loss"], "accuracy": accuracy, "examples": evaluated["examples"]}
    summary: RunSummary = {
        "framework": None,
        "strategy": None,
        "replicas": None,
        "status": "unknown",
        "final_loss": float(loss[-1]) if len(steps) else None,
        "accuracy": float(accuracy[-1]) if len(accuracy) and math.isfinite(accuracy[-1]) else None,
    }
    return Run(
        path=path,
        config={},
        summary=summary,
        steps=steps,
        metrics=metrics,
        eval_steps=eval_steps,
        evals=evals,
        repeated_steps=[],
        notes=_describe_table(name, table, columns),
        label=name,
        missing_metrics=frozenset({*TRAINING_COLUMNS} - columns.keys()),
        external_kind=table.kind,
        unit=table.unit,
    )


def _describe_table(name: str, table: ExternalTable, columns: Mapping[str, str]) -> list[str]:
    matches = ", ".join(f"{metric}={column}" for metric, column in columns.items())
    notes = [f"{name}: {table.kind}, columns {matches}", *(f"{name}: {note}" for note in table.notes)]
    return [*notes, f"{name}: its rows are epochs"] if table.unit == "epoch" else notes


def match_columns(path: str, names: Iterable[str], chosen_columns: Mapping[str, str | None]) -> dict[str, str]:
    """Match the columns of a file to metrics.

    Args:
        path: The file, for error messages.
        names: The columns of the file.
        chosen_columns: The columns that the user has named, by metric.

    Returns:
        The column of each metric of KNOWN_COLUMNS that the file has.

    Raises:
        UserError: A column that the user named is missing, or no column is known to be the loss.
    """
    columns: dict[str, str] = {}
    available = list(names)
    by_lower_name = {name.lower(): name for name in reversed(available)}
    for metric, known_names in KNOWN_COLUMNS.items():
        if chosen := chosen_columns.get(metric):
            if chosen not in available:
                raise UserError(
                    f"{path}: columns.{metric}={chosen}: no such column; use one of {format_names(available)}"
                )
            columns[metric] = chosen
        elif known := next((by_lower_name[name] for name in known_names if name in by_lower_name), None):
            columns[metric] = known
    if "loss" not in columns and "eval_loss" not in columns:
        raise UserError(
            f"{path}: no column is known to be the loss; name it with columns.loss=NAME: {format_names(available)}"
        )
    return columns


def format_names(names: list[str], limit: int = 20) -> str:
    """Format names as a list; only the first `limit` of many."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(name[:60] for name in names[:limit]) + more


def _collect_columns(
    table: ExternalTable, columns: Mapping[str, str], steps_before: list[int], required: str, metrics: tuple[str, ...]
) -> tuple[np.ndarray, Columns]:
    """Return the sorted steps and the metrics of all rows that have the required metric.

    If several rows have the same step, the last one counts, and the table gets a note.

    Args:
        table: The rows.
        columns: The name of the column of each metric.
        steps_before: The number that is added to the step of each row.
        required: The metric.
        metrics: The metrics to collect.
    """
    rows: dict[int, list[float]] = {}
    repeated_count = 0
    for number, ((position, values), offset) in enumerate(zip(table.rows, steps_before, strict=True), start=1):
        if required not in columns or _is_absent(values.get(columns[required])):
            continue
        step = _read_number(position, columns, "step", values) if "step" in columns else float(number)
        if not step.is_integer() or step < 0:
            raise UserError(f"{position}: '{columns['step']}' must be a whole number, found {step!r}")
        number_in_run = int(step) + offset + table.shift
        repeated_count += number_in_run in rows
        rows[number_in_run] = [_read_number(position, columns, metric, values) for metric in metrics]
    if repeated_count:
        table.notes.append(
            f"{repeated_count} rows with {columns[required]} left out, because a later row has the same step"
        )
    steps = np.array(sorted(rows), dtype=np.int64)
    values_by_step = np.array([rows[step] for step in steps.tolist()], dtype=np.float64)
    values_by_step = values_by_step.reshape(len(steps), len(metrics))  # also if there are no steps
    return steps, {metric: values_by_step[:, index].copy() for index, metric in enumerate(metrics)}


def count_steps_before(table: ExternalTable, columns: Mapping[str, str]) -> list[int]:
    """Return, for each row, the number of steps of the earlier epochs if steps start again in each epoch; else 0.

    The steps of an epoch are counted from its first and last rows, and the interval between rows.
    """
    offsets = [0] * len(table.rows)
    names = table.rows[0].values if table.rows else ()
    epoch_column = next((name for name in names if name.lower() == "epoch"), None)
    if epoch_column is None or columns.get("step") in (None, epoch_column):
        return offsets
    offset, epoch, epoch_steps = 0, math.nan, list[float]()
    for number, (position, values) in enumerate(table.rows):
        entries = [values.get(name) for name in (epoch_column, columns["step"])]
        if not any(map(_is_absent, entries)):
            step = _read_number(position, columns, "step", values)
            row_epoch = _read_number(position, {"epoch": epoch_column}, "epoch", values)
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


def _is_absent(value: object) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in ABSENT)


def _read_number(position: str, columns: Mapping[str, str], metric: str, values: Mapping[str, object]) -> float:
    """Return a metric of a row; NaN if the file has no column for it or the row has no value there."""
    value = values.get(columns[metric]) if metric in columns else None
    if _is_absent(value):
        return math.nan
    try:
        if isinstance(value, bool):
            raise ValueError
        return float(str(value))
    except ValueError:
        raise UserError(f"{position}: '{columns[metric]}' must be a number, found {str(value)[:60]!r}") from None
