"""Conversion of another program's file or directory to a run whose data, weights and optimizer are unknown."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from common.compare.columns import Columns
from common.compare.external.epoch_steps import count_steps_before, find_epoch_ends, recognize_steps
from common.compare.external.external_tables import ExternalTable, read_file
from common.compare.external.external_values import is_absent, measure_rounding, read_number
from common.compare.external.known_columns import GUESSED, match_columns
from common.compare.external.loss_means import find_loss_means
from common.compare.external.phases import separate_phases
from common.compare.external.record_curve import read_record_curve
from common.compare.external.tensorboard import read_directory
from common.compare.external.unknown_phases import refuse_unknown_phases
from common.compare.run_files import REQUIRED_FILES
from common.compare.runs import OPTIONAL_EVALUATION_METRICS, OPTIONAL_METRICS, STEP_METRICS, Run
from common.errors import UserError
from common.recording.record_reader import is_record
from common.records.summary import Summary

TRAINING_COLUMNS = (*STEP_METRICS, *OPTIONAL_METRICS)
EVALUATION_COLUMNS = ("eval_loss", "eval_accuracy", "examples")
LARGEST_STEP = 2**53  # larger whole numbers are rounded in float64
NOTED_ROUNDING = 1e-7  # smallest rounding error that a note mentions


def load_external_runs(
    paths: Sequence[tuple[str, Path]], chosen_columns: Mapping[str, str | None]
) -> tuple[list[Run], list[str]]:
    """Read external runs.

    Args:
        paths: Name and path of each run.
        chosen_columns: The column of each metric: a name, GUESSED, or None if the metric is not to be read. If there
            are several files, a column need not be in all of them.

    Returns:
        The runs that can be read, and an error message for each of the others.

    Raises:
        UserError: No run has a column that the user has named.
    """
    runs: list[Run] = []
    errors = []
    for name, path in paths:
        try:
            runs.append(load_external_run(name, path, chosen_columns, is_only_file=len(paths) == 1))
        except UserError as error:
            errors.append(str(error))
    for metric, column in chosen_columns.items():
        if len(runs) > 1 and column not in (None, GUESSED, *(run.columns.get(metric) for run in runs)):
            raise UserError(
                f"columns.{metric}={column}: no file has this column; the notes of the report list the columns read"
            )
    return runs, errors


def load_external_run(
    name: str, path: Path, chosen_columns: Mapping[str, str | None], is_only_file: bool = True
) -> Run:
    """Read an external run.

    Args:
        name: The label of the run.
        path: A file, a record, or a TensorBoard directory.
        chosen_columns: The column of each metric: a name, GUESSED, or None if the metric is not to be read.
        is_only_file: Whether `path` is the only file. The only file must have every column that the user names.

    Returns:
        A run with an empty config.

    Raises:
        UserError: The file cannot be read; the message names the line and the expected formats.
    """
    chosen_loss = chosen_columns.get("loss")
    if not path.is_dir():
        table = read_file(path)
    elif is_record(path):
        table = read_record_curve(path)
    elif all((path / file).is_file() for file in REQUIRED_FILES):
        raise UserError(f"{path}: a run of Lockstep has its own name; pass {path} in place of {name}={path}")
    else:
        table = read_directory(path, None if chosen_loss == GUESSED else chosen_loss)
    separate_phases(table)
    names = dict.fromkeys(column for row in table.rows for column in row.values)
    columns = match_columns(str(path), names, chosen_columns, is_only_file)
    recognize_steps(table, columns)
    if "step" not in columns:
        raise UserError(f"{path}: no column for the step; name it with columns.step=NAME")
    refuse_unknown_phases(table, columns)
    steps_before = count_steps_before(table, columns)
    steps, metrics = _collect_columns(table, columns, steps_before, "loss", TRAINING_COLUMNS)
    eval_steps, evaluated = _collect_columns(table, columns, steps_before, "eval_loss", EVALUATION_COLUMNS)
    steps, eval_steps = _count_from_one(table, steps, eval_steps)
    if table.has_seconds_of_epochs:
        metrics["seconds"] = np.cumsum(metrics["seconds"])
    elif "seconds" in columns and not _is_elapsed_time(metrics["seconds"]):
        table.notes.append(f"{columns.pop('seconds')} left out: it does not grow, so it is not a time since the start")
        metrics["seconds"] = np.full(len(steps), np.nan)
    means = find_loss_means(table, columns, steps)
    rounding = _measure_roundings(table, columns)
    loss, accuracy = metrics["loss"], evaluated["eval_accuracy"]
    evals = {metric: np.full(len(eval_steps), np.nan) for metric in OPTIONAL_EVALUATION_METRICS}
    evals |= {"loss": evaluated["eval_loss"], "accuracy": accuracy, "examples": evaluated["examples"]}
    recorded = {"loss", *(["accuracy"] if "eval_accuracy" in columns else [])} if len(eval_steps) else ()
    summary: Summary = {
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
        recorded_evaluations=frozenset(recorded),
        notes=[f"{name}: {note}" for note in _describe_table(table, columns, means.note, rounding)],
        label=name,
        missing_metrics=frozenset({*TRAINING_COLUMNS} - columns.keys()),
        external_kind=table.kind,
        columns=columns,
        unit=table.unit,
        loss_windows=means.windows,
        weighs_examples=means.weighs_examples or table.unit == "epoch",
        epoch_ends=find_epoch_ends(table, columns, steps),
        loss_rounding=rounding["loss"],
        grad_norm_rounding=rounding["grad_norm"],
    )


def _is_elapsed_time(seconds: np.ndarray) -> bool:
    """Check whether the times of the rows grow, unlike the duration of each step."""
    known = seconds[np.isfinite(seconds)]
    return len(known) < 2 or bool((np.diff(known) >= 0).all() and known[-1] > known[0])


def _describe_table(
    table: ExternalTable, columns: Mapping[str, str], note_on_means: str, rounding: Mapping[str, float]
) -> list[str]:
    """Return notes: what the file is, how its columns are read, and what is left out."""
    matches = ", ".join(f"{metric}={column}" for metric, column in columns.items())
    notes = [f"{table.kind}, columns {matches}", *table.notes, *filter(None, [note_on_means])]
    notes += [
        f"its {metric} has few digits; a {'relative ' if metric == 'grad_norm' else ''}difference up to {error:.2g} "
        "counts as rounding"
        for metric, error in rounding.items()
        if error > NOTED_ROUNDING
    ]
    return [*notes, "its rows are epochs"] if table.unit == "epoch" else notes


def _measure_roundings(table: ExternalTable, columns: Mapping[str, str]) -> dict[str, float]:
    """Return the largest rounding error of the loss, absolute, and of grad_norm, relative."""
    return {
        metric: measure_rounding((row.values.get(columns[metric]) for row in table.rows), metric == "grad_norm")
        if metric in columns
        else 0.0
        for metric in ("loss", "grad_norm")
    }


def _count_from_one(table: ExternalTable, steps: np.ndarray, eval_steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Add 1 to all steps if the program counts from 0, always or because the first step with a loss is 0."""
    # A file of epochs may have evaluations only.
    first_steps = steps if len(steps) or table.unit == "step" else eval_steps
    if table.counts_from_zero or (len(first_steps) and first_steps[0] == 0):
        table.notes.append(f"{table.unit}s counted from 0 there")
        return steps + 1, eval_steps + 1
    return steps, eval_steps


def _collect_columns(
    table: ExternalTable, columns: Mapping[str, str], steps_before: list[int], required: str, metrics: tuple[str, ...]
) -> tuple[np.ndarray, Columns]:
    """Return the sorted steps and the metrics of all rows that have the required metric.

    If several rows have the same step, the last one counts. An evaluation without a step takes the step of the row
    before. The notes of the table mention both cases.

    Args:
        table: The rows.
        columns: The name of the column of each metric.
        steps_before: The number that is added to the step of each row.
        required: The metric that a row must have.
        metrics: The metrics to collect.
    """
    rows: dict[int, list[float]] = {}
    repeated_count = stepless_count = 0
    last_step = math.nan
    for (position, values), offset in zip(table.rows, steps_before, strict=True):
        is_read, is_training = (
            name in columns and not is_absent(values.get(columns[name])) for name in (required, "loss")
        )
        if not is_read and not is_training:
            continue
        step = read_number(position, columns, "step", values) + offset
        if is_read and math.isnan(step) and required == "eval_loss":
            step = last_step
            stepless_count += 1
        last_step = last_step if math.isnan(step) else step
        if not is_read:
            continue
        if not step.is_integer() or not 0 <= step < LARGEST_STEP:
            entry = "nothing" if math.isnan(step) else repr(step)
            raise UserError(f"{position}: '{columns['step']}' must be a whole number, found {entry}")
        repeated_count += int(step) in rows
        rows[int(step)] = [read_number(position, columns, metric, values) for metric in metrics]
    if stepless_count:
        table.notes.append(
            f"{stepless_count} rows with {columns[required]} have no {columns['step']} and take that of the row before"
        )
    if repeated_count:
        table.notes.append(
            f"{repeated_count} rows with {columns[required]} left out, because a later row has the same step"
        )
    steps = np.array(sorted(rows), dtype=np.int64)
    values_by_step = np.array([rows[step] for step in steps.tolist()], dtype=np.float64)
    values_by_step = values_by_step.reshape(len(steps), len(metrics))  # has two axes even if there are no steps
    return steps, {metric: values_by_step[:, index].copy() for index, metric in enumerate(metrics)}
