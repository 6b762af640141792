"""Readers for the files of other programs: CSV, JSON and JSON lines, as tables of rows."""

import csv
import io
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from common.errors import UserError

EXPECTED = (  # the end of an error message
    "expected a CSV with a header, a Trainer's trainer_state.json, a Keras history as JSON, or rows as JSON lines"
)
MLFLOW_ROW = re.compile(r"\d{10,} \S+ \d+")  # time in ms, value, step
LOG_LINE = re.compile(r"loss\w*(\s*[:=]\s*|\s+)-?[\d.]", re.IGNORECASE)  # a name and its value: not a header of a CSV
# Lower-case names of a column of steps
STEP_COLUMNS = {"step", "steps", "global_step", "iteration", "iter", "num_updates"}


class ExternalRow(NamedTuple):
    """Row of a file that another program wrote, such as the values after one step."""

    position: str  # file and line, such as "train.csv:3", for error messages
    values: dict[str, object]  # value of each column


@dataclass
class ExternalTable:
    """Rows of an external run, which is a run of another program."""

    kind: str  # description of the file, such as "a Keras history"
    rows: list[ExternalRow]
    unit: str = "step"  # what the step of a row counts: "step" or "epoch"
    counts_from_zero: bool = False  # whether the first step of the program is 0, even if its first row is a later one
    has_means_of_steps: bool = False  # whether a loss is the mean since the row before, as a Hugging Face Trainer's is
    epoch_ends: list[int] | None = None  # last step of each epoch; None if unknown
    has_seconds_of_epochs: bool = False  # whether `seconds` is the duration of an epoch, not the time since the start
    notes: list[str] = field(default_factory=list)  # sentences for the reader of a report


def read_file(path: Path) -> ExternalTable:
    """Read the rows of a file. Raise UserError that names the line and the expected formats."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a text file; {EXPECTED}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    if not text.strip():
        raise UserError(f"{path}: empty; {EXPECTED}")
    if all(MLFLOW_ROW.fullmatch(line) for line in text.splitlines()):
        return _parse_mlflow(path, text)
    if text.lstrip()[0] not in "{[":
        return _parse_csv(path, text)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        has_several_values = str(error).startswith("Extra data")
        if path.suffix == ".json" and not has_several_values:
            raise UserError(f"{path}: not valid JSON: {error}") from error
        return _parse_json_lines(path, text)
    return _convert_json(path, content)


def _parse_csv(path: Path, text: str) -> ExternalTable:
    """Parse a CSV. Its columns show its kind: Lightning's, with steps from 0, or rows of epochs, or rows of steps."""
    if all(map(LOG_LINE.search, text.splitlines()[:2])):
        raise UserError(f"{path}: lines of a log as text, which are not read; {EXPECTED}")
    header, rows = _parse_csv_rows(path, text)
    if len(header) != len(set(header)):
        raise UserError(f"{path}:1: a column occurs twice: {', '.join(header)[:200]}")
    columns = {name.lower() for name in header}
    if header == ["Wall time", "Step", "Value"]:
        return _convert_tensorboard_csv(path, rows)
    if path.name == "metrics.csv" and {"epoch", "step"} <= columns:
        return ExternalTable("Lightning's metrics.csv", rows, counts_from_zero=True)
    if {"epoch", "train_loss", "valid_loss", "time"} <= columns:
        notes = ["its train_loss is an exponential average over steps, not the mean of an epoch"]
        return ExternalTable("fastai's history.csv", rows, unit="epoch", has_seconds_of_epochs=True, notes=notes)
    return ExternalTable("a CSV", rows)


def _convert_tensorboard_csv(path: Path, rows: list[ExternalRow]) -> ExternalTable:
    """Convert a CSV that TensorBoard's page saves. Its name, run-RUN-tag-TAG.csv, says what its values are."""
    tag = path.stem.rpartition("tag-")[2]
    if tag == "batch_loss":
        raise UserError(f"{path}: Keras's mean since the start of an epoch; name the directory of event files instead")
    renamed = [ExternalRow(position, {"step": values["Step"], tag: values["Value"]}) for position, values in rows]
    return ExternalTable("a CSV of TensorBoard", renamed, unit="epoch" if tag.startswith("epoch_") else "step")


def _parse_mlflow(path: Path, text: str) -> ExternalTable:
    """Parse a file of MLflow's directory `metrics`, which is named after the metric."""
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        _, value, step = line.split(" ")
        rows.append(ExternalRow(f"{path}:{number}", {"step": step, path.name: value}))
    return ExternalTable("a metric of MLflow", rows)


def _parse_csv_rows(path: Path, text: str) -> tuple[list[str], list[ExternalRow]]:
    """Return the header and the rows. The separator is a comma, a semicolon or a tab."""
    try:
        dialect: type[csv.Dialect] = csv.Sniffer().sniff(text.partition("\n")[0], delimiters=",;\t")
    except csv.Error:
        dialect = csv.excel
    reader = csv.reader(io.StringIO(text, newline=""), dialect)  # a quoted value may have line breaks
    rows = []
    try:
        header = [name.strip() for name in next(reader)]
        for values in reader:
            if not any(values):
                continue
            if {*header} <= {*(names := [name.strip() for name in values])}:
                header = names  # a script that appends to its file may write the header again, with further columns
                continue
            position = f"{path}:{reader.line_num}"
            if len(values) != len(header):
                raise UserError(f"{position}: {len(values)} values, expected {len(header)} as in line 1")
            rows.append(ExternalRow(position, dict(zip(header, values, strict=True))))
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: {error}") from error
    return header, rows


def _convert_json(path: Path, content: object) -> ExternalTable:
    """Convert a list of rows, the file of a Hugging Face Trainer, a Keras history, or a single row."""
    if isinstance(content, list):
        return ExternalTable("rows as JSON", _convert_objects(path, content, "the list"))
    if isinstance(content, dict) and isinstance(content.get("log_history"), list):
        rows = _convert_objects(path, content["log_history"], "log_history")
        return ExternalTable("a Trainer's trainer_state.json", rows, has_means_of_steps=True)
    if isinstance(content, dict) and content and all(isinstance(values, list) for values in content.values()):
        return _convert_history(path, content)
    if isinstance(content, dict) and ("step" in content or "epoch" in content):
        return ExternalTable("rows as JSON lines", [ExternalRow(f"{path}:1", content)])
    raise UserError(f"{path}: unknown JSON; {EXPECTED}")


def _convert_history(path: Path, history: dict[str, list[object]]) -> ExternalTable:
    """Convert a Keras history, which has a list with an entry for each epoch under the name of each metric."""
    lengths = {name: len(values) for name, values in history.items()}
    if len(set(lengths.values())) > 1:
        raise UserError(f"{path}: its lists differ in length: {str(lengths)[:200]}")
    rows = [
        ExternalRow(f"{path}: entry {number}", dict(zip(history, values, strict=True)) | {"epoch": number})
        for number, values in enumerate(zip(*history.values(), strict=True), start=1)
    ]
    return ExternalTable("a Keras history", rows, unit="epoch")


def _parse_json_lines(path: Path, text: str) -> ExternalTable:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):  # a text may hold other separators, such as U+2028
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: not a valid JSON row: {error}") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number}: a row must be a JSON object, found {line[:60]}")
        rows.append(ExternalRow(f"{path}:{number}", row))
    if rows and "env_info" in rows[0].values:
        return ExternalTable("mmcv's log", rows, has_means_of_steps=True)
    if rows and {"num_updates", "loss"} <= rows[0].values.keys():
        return ExternalTable("fairseq's log", rows, has_means_of_steps=True)
    return ExternalTable("rows as JSON lines", rows)


def _convert_objects(path: Path, values: list[object], name: str) -> list[ExternalRow]:
    """Convert JSON objects to rows. `name`: what an error calls the list."""
    rows = []
    for number, value in enumerate(values, start=1):
        if not isinstance(value, dict):
            raise UserError(f"{path}: entry {number} of {name} must be a JSON object, found {str(value)[:60]}")
        rows.append(ExternalRow(f"{path}: entry {number}", value))
    return rows
