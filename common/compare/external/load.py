"""Makes a run of a foreign file or directory. What it was trained on, and how, stays unknown."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from common.compare.external.files import read_file
from common.compare.external.names import Table, columns_of
from common.compare.external.tensorboard import read_directory
from common.compare.runs import EVALUATED, MEASURED, METRICS, Run
from common.errors import UserError

ABSENT = ("", None)  # of a value that a row does not have


def load_external(name: str, path: Path, chosen: Mapping[str, str | None]) -> Run:
    """The run at `path`, called `name`. chosen: the columns that the user has named.

    Its config is empty. Raises UserError that names the file, the line and what was expected.
    """
    table = read_directory(path) if path.is_dir() else read_file(path)
    names = dict.fromkeys(column for _, row in table.rows for column in row)
    columns = columns_of(str(path), names, chosen)
    if table.unit == "epoch" and "step" not in columns:
        raise UserError(f"{path}: no column for the step; name it with columns.step=NAME")
    train = _rows(table, columns, "loss", (*METRICS, *MEASURED))
    evals = _rows(table, columns, "eval_loss", ("eval_loss", "eval_accuracy", "examples"))
    steps, metrics = _arrays(train, (*METRICS, *MEASURED))
    eval_steps, values = _arrays(evals, ("eval_loss", "eval_accuracy", "examples"))
    said = ", ".join(f"{what}={column}" for what, column in columns.items())
    notes = [f"{name}: {table.kind}, columns {said}", *(f"{name}: {note}" for note in table.notes)]
    if table.unit == "epoch":
        notes.append(f"{name}: its rows are epochs")
    accuracy = values["eval_accuracy"]
    return Run(
        path=path,
        config={},
        summary={
            **dict.fromkeys(("framework", "strategy", "replicas")),
            "status": "unknown",
            "final_loss": float(metrics["loss"][-1]) if len(steps) else None,
            "accuracy": float(accuracy[-1]) if len(accuracy) and math.isfinite(accuracy[-1]) else None,
        },
        steps=steps,
        metrics=metrics,
        eval_steps=eval_steps,
        evals={"loss": values["eval_loss"], "accuracy": accuracy, "examples": values["examples"]}
        | {name: np.full(len(eval_steps), np.nan) for name in EVALUATED if name != "accuracy"},
        repeated_steps=[],
        notes=notes,
        label=name,
        missing=frozenset({*METRICS, *MEASURED} - columns.keys()),
        external=table.kind,
        unit=table.unit,
    )


def _rows(table: Table, columns: dict[str, str], needed: str, wanted: tuple[str, ...]) -> dict[int, list[float]]:
    """The values of the rows that have the needed one, by step; the last row of a step counts."""
    found: dict[int, list[float]] = {}
    for number, (where, row) in enumerate(table.rows, start=1):
        if needed not in columns or row.get(columns[needed]) in ABSENT:
            continue
        step = _number(where, columns, "step", row) if "step" in columns else float(number)
        if not step.is_integer() or step < 0:
            raise UserError(f"{where}: '{columns['step']}' must be a whole number, found {step!r}")
        found[int(step) + table.shift] = [_number(where, columns, name, row) for name in wanted]
    return found


def _number(where: str, columns: dict[str, str], what: str, row: dict[str, Any]) -> float:
    """A value of a row; NaN where the run has no such column, or the row no such value."""
    value = row.get(columns[what]) if what in columns else None
    if value in ABSENT:
        return math.nan
    try:
        if isinstance(value, bool):
            raise ValueError
        return float(str(value))
    except ValueError:
        raise UserError(f"{where}: '{columns[what]}' must be a number, found {str(value)[:60]!r}") from None


def _arrays(rows: dict[int, list[float]], names: tuple[str, ...]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    steps = np.array(sorted(rows), dtype=np.int64)
    table = np.array([rows[step] for step in steps.tolist()], dtype=np.float64).reshape(len(steps), len(names))
    return steps, {name: table[:, place].copy() for place, name in enumerate(names)}
