"""Rows of metrics.jsonl (one for each update), evals.jsonl (evaluation) and traffic.jsonl (bytes moved by an update).

Each line of a file is one row, a JSON object.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from common.errors import build_write_error
from common.records.rows import iterate_rows, list_metrics

Row = dict[str, Any]  # values are numbers, strings, or lists of numbers, depending on the file and the strategy

STEP_SCALARS = ("loss", "learning_rate", "grad_norm")


def read_rows(path: Path) -> list[Row]:
    """Return the complete rows of a file; an empty list if the file does not exist. Raise UserError."""
    return [row for _, _, row in iterate_rows(path, [])] if path.exists() else []


def parse_rows(content: bytes) -> tuple[list[Row], int]:
    """Return the complete rows of a file, and their length in bytes.

    An incomplete last line, which a killed writer may leave, is ignored.
    """
    length = content.rfind(b"\n") + 1
    return [json.loads(line) for line in content[:length].splitlines()], length


def append_rows(file: IO[bytes], rows: Iterable[Row]) -> None:
    """Append rows and flush them. Raise UserError if the disk is full."""
    try:
        file.write(format_rows(rows).encode())
        file.flush()
    except OSError as error:
        raise build_write_error(file.name, error) from error


def format_rows(rows: Iterable[Row]) -> str:
    """Return the text of a file with these rows."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def select_scalars(row: Row) -> dict[str, float]:
    """Return the values of a step or an evaluation that TensorBoard and the trackers show: {"train/loss": 0.7, ...}."""
    if "count" in row:  # only rows of evals.jsonl have the number of examples
        names = [name for name in ("loss", *list_metrics(row)) if row[name] is not None]  # null: not defined
        return {f"validation/{name}": row[name] for name in names}
    return {f"train/{name}": row[name] for name in row if name in STEP_SCALARS or name.endswith("_loss")}
