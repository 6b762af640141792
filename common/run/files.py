"""Files of a run directory that are replaced as a whole."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from common.errors import UserError, report_write_errors
from common.records.files import is_number
from common.records.rows import iterate_rows
from common.training.rows import STEP_SCALARS, Row, format_rows
from common.training.state import Position

ROW_FILES: Mapping[str, tuple[str, ...]] = {  # file -> the numbers that each of its rows has
    "metrics.jsonl": (*STEP_SCALARS, "examples", "tokens", "seconds"),
    "evals.jsonl": ("loss", "count", "duration"),
    "traffic.jsonl": (),
}
REMEDY = "remove this line to resume without it"


def replace_text(path: Path, text: str) -> None:
    """Replace a file atomically: a reader finds the old text or the new one."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        partial.write_text(text)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)  # frees space if the disk is full
        raise


def drop_rows_after(run_dir: Path, position: Position) -> list[Row]:
    """Drop the rows after the position of a checkpoint, since training writes them again when it resumes from there.

    Return the remaining rows of metrics.jsonl and evals.jsonl. Raise UserError if one of them is damaged, or if the
    disk is full.
    """
    remaining: list[Row] = []
    for path, rows in read_rows_until(run_dir, position).items():
        with report_write_errors(path):
            replace_text(path, format_rows(rows))
        remaining += rows if path.name != "traffic.jsonl" else []
    return remaining


def read_rows_until(run_dir: Path, position: Position) -> dict[Path, list[Row]]:
    """Return the rows until the position of a checkpoint, by file. Raise UserError if one of them is damaged."""
    rows = {}
    for name in ROW_FILES:
        # A checkpoint may be older than the evaluation of its step, which the run then repeats.
        keeps_last = name != "evals.jsonl" or position.validation is not None
        last_step = position.step if keeps_last else position.step - 1
        path = run_dir / name
        if path.exists():
            rows[path] = list(_iterate_rows_until(path, last_step))
    return rows


def _iterate_rows_until(path: Path, last_step: int) -> Iterator[Row]:
    """Yield the rows until a step. Raise UserError if one is damaged; later rows are not read.

    A power failure may damage the rows after a checkpoint, but not those before it, which are on the disk.
    """
    for position, step, row in iterate_rows(path, []):
        if step > last_step:
            return
        for name in ROW_FILES[path.name]:
            if not is_number(row.get(name)):
                raise UserError(f"{position}: '{name}' must be a number, found {str(row.get(name))[:100]}; {REMEDY}")
        for name, value in row.items():
            values = value if isinstance(value, list) else [value]
            if name != "trained_by" and not all(is_number(number, null=True) for number in values):
                raise UserError(f"{position}: '{name}' must be a number, found {str(value)[:100]}; {REMEDY}")
        yield row
