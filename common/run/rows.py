"""Small files of a run directory: rows that are appended, texts that are replaced."""

import json
import os
from pathlib import Path
from typing import IO, Any

from common.config.tasks import METRICS
from common.errors import build_write_error
from common.training.observer import Row
from common.training.state import Position

TRAIN_SCALARS = ("loss", "learning_rate", "grad_norm")
ROWS = ("metrics.jsonl", "evals.jsonl", "traffic.jsonl")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The complete rows of a JSONL file; a last line that a killed writer left unfinished is left out."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def scalars(row: Row) -> dict[str, float]:
    """What TensorBoard and the trackers show of a row of metrics.jsonl or evals.jsonl: {"train/loss": 0.7, ...}."""
    if "count" in row:
        return {f"validation/{name}": row[name] for name in ("loss", *METRICS) if name in row}
    return {f"train/{name}": row[name] for name in TRAIN_SCALARS}


def append_rows(file: IO[bytes], rows: list[dict[str, Any]]) -> None:
    """Append complete rows. Raises UserError where the disk is full; readers leave out an incomplete last row."""
    try:
        file.write("".join(json.dumps(row) + "\n" for row in rows).encode())
        file.flush()
    except OSError as error:
        raise build_write_error(file.name, error) from error


def keep_rows(run_dir: Path, position: Position) -> list[dict[str, Any]]:
    """Drop the rows after a position: they will be written again. Returns those of metrics.jsonl and evals.jsonl."""
    kept = []
    for name in ROWS:
        evaluated = name != "evals.jsonl" or position.validation is not None
        last = position.step if evaluated else position.step - 1
        if (run_dir / name).exists():
            rows = [row for row in read_rows(run_dir / name) if row["step"] <= last]
            replace_text(run_dir / name, "".join(json.dumps(row) + "\n" for row in rows))
            kept += rows if name != "traffic.jsonl" else []
    return kept


def replace_text(path: Path, text: str) -> None:
    """Replace a file atomically: it has the old text or the new."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text)
    os.replace(partial, path)
