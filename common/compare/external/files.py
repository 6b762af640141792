"""Reads the rows of files that other programs write: CSV, JSON, JSON lines."""

import csv
import json
from pathlib import Path
from typing import Any

from common.compare.external.names import Table
from common.errors import UserError

EXPECTED = (
    "expected a CSV with a header, a Trainer's trainer_state.json, a Keras history as JSON, or rows as JSON lines"
)


def read_file(path: Path) -> Table:
    """The rows of a file. Raises UserError that names the line, and what was expected."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a text file; {EXPECTED}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    if not text.strip():
        raise UserError(f"{path}: empty; {EXPECTED}")
    if text.lstrip()[0] not in "{[":
        return _csv(path, text)
    try:
        return _json(path, json.loads(text))
    except (ValueError, RecursionError) as error:
        if path.suffix == ".json" or isinstance(error, UserError):
            raise error if isinstance(error, UserError) else UserError(f"{path}: not valid JSON: {error}") from error
    return _json_lines(path, text)


def _csv(path: Path, text: str) -> Table:
    """A header and rows. Lightning counts steps from 0 and writes training and validation in rows of their own."""
    lines = text.splitlines()
    try:
        dialect: Any = csv.Sniffer().sniff(lines[0], delimiters=",;\t")
    except csv.Error:
        dialect = csv.excel
    reader = csv.reader(lines, dialect)
    rows = []
    try:
        header = [name.strip() for name in next(reader)]
        for values in reader:
            if not any(values):
                continue
            if len(values) != len(header):
                raise UserError(f"{path}:{reader.line_num}: {len(values)} values, expected {len(header)} as in line 1")
            rows.append((f"{path}:{reader.line_num}", dict(zip(header, values, strict=True))))
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: {error}") from error
    if len(header) != len(set(header)):
        raise UserError(f"{path}:1: a column occurs twice: {', '.join(header)[:200]}")
    lower = {name.lower() for name in header}
    if path.name == "metrics.csv" and {"epoch", "step"} <= lower:
        return Table("Lightning's metrics.csv", rows, shift=1, notes=["steps counted from 0 there"])
    if "epoch" in lower and not lower & {"step", "steps", "global_step", "iteration", "iter"}:
        from_zero = any(row.get("epoch") == "0" for _, row in rows[:1])  # as Keras counts
        return Table("a CSV of epochs", rows, unit="epoch", shift=int(from_zero))
    return Table("a CSV", rows)


def _json(path: Path, content: Any) -> Table:
    if isinstance(content, dict) and isinstance(content.get("log_history"), list):
        every = content.get("logging_steps")
        notes = [f"its loss is the mean of {every} steps"] if every not in (None, 1) else []
        return Table(
            "a Trainer's trainer_state.json", _objects(path, content["log_history"], "log_history"), notes=notes
        )
    if isinstance(content, dict) and content and all(isinstance(values, list) for values in content.values()):
        lengths = {name: len(values) for name, values in content.items()}
        if len(set(lengths.values())) > 1:
            raise UserError(f"{path}: its lists differ in length: {str(lengths)[:200]}")
        columns = [content[name] for name in content]
        rows = [
            (f"{path}: entry {number}", dict(zip(content, values, strict=True)) | {"epoch": number})
            for number, values in enumerate(zip(*columns, strict=True), start=1)
        ]
        return Table("a Keras history", rows, unit="epoch")
    if isinstance(content, list):
        return Table("rows as JSON", _objects(path, content, "it"))
    if isinstance(content, dict) and ("step" in content or "epoch" in content):
        return Table("rows as JSON lines", [(f"{path}:1", content)])
    raise UserError(f"{path}: unknown JSON; {EXPECTED}")


def _json_lines(path: Path, text: str) -> Table:
    rows, lines = [], text.splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: not a valid JSON row: {error}") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number}: a row must be a JSON object, found {line[:60]}")
        rows.append((f"{path}:{number}", row))
    return Table("rows as JSON lines", rows)


def _objects(path: Path, values: list[Any], what: str) -> list[tuple[str, dict[str, Any]]]:
    for number, value in enumerate(values, start=1):
        if not isinstance(value, dict):
            raise UserError(f"{path}: entry {number} of {what} must be a JSON object, found {str(value)[:60]}")
    return [(f"{path}: entry {number}", value) for number, value in enumerate(values, start=1)]
