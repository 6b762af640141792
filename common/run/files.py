"""Files of a run directory that are replaced as a whole."""

from pathlib import Path

from common.training.rows import Row, format_rows, read_rows
from common.training.state import Position

ROW_FILES = ("metrics.jsonl", "evals.jsonl", "traffic.jsonl")


def replace_text(path: Path, text: str) -> None:
    """Replace a file atomically: a reader finds the old text or the new one."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text)
    partial.replace(path)


def drop_rows_after(run_dir: Path, position: Position) -> list[Row]:
    """Drop the rows after the position of a checkpoint, since training writes them again when it resumes from there.

    Returns the remaining rows of metrics.jsonl and evals.jsonl.
    """
    remaining: list[Row] = []
    for name in ROW_FILES:
        # A checkpoint may be older than the evaluation of its step, which the run then repeats.
        is_evaluated = name != "evals.jsonl" or position.validation is not None
        last_step = position.step if is_evaluated else position.step - 1
        path = run_dir / name
        if path.exists():
            rows = [row for row in read_rows(path) if row["step"] <= last_step]
            replace_text(path, format_rows(rows))
            remaining += rows if name != "traffic.jsonl" else []
    return remaining
