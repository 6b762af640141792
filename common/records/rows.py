"""Reader of the .jsonl files of a run directory, which have one JSON object with a `step` in each line."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from common.errors import UserError, error_reason, one_line
from common.records.files import check_no_pipe, is_count

# Fields of a row of evals.jsonl, and axes of plots; all other fields of these rows are metrics
EVALUATION_FIELDS = ("step", "loss", "examples", "tokens", "seconds", "count", "duration")
MAX_LINE_BYTES = 16 << 20  # a row of a run with thousands of replicas has some hundred kilobytes


def list_metrics(row: Iterable[str]) -> list[str]:
    """Return the names of the metrics of an evaluation in the order of its row, such as accuracy and f1."""
    return [name for name in row if name not in EVALUATION_FIELDS]


def iterate_rows(file: Path, notes: list[str]) -> Iterator[tuple[str, int, dict[str, object]]]:
    """Yield the position ("file:line"), the step and the fields of each row of a file.

    Args:
        file: The file.
        notes: Receives a note if the last line is incomplete, as a writer that was killed leaves it.

    Raises:
        UserError: The file cannot be read, or a row is malformed. The message names the line.
    """
    for number, line in _iterate_lines(file):
        position = f"{file}:{number}"
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if not line.endswith(b"\n"):  # only the last line has no line feed
                notes.append(f"{position}: incomplete last line left out")
                break
            raise UserError(f"{position}: not a valid JSON row: {one_line(error)}") from error
        step = row.get("step") if isinstance(row, dict) else None
        if not is_count(step):
            raise UserError(
                f"{position}: a row must be a JSON object with a whole number 'step', found {str(step)[:100]}"
            )
        yield position, step, row


def _iterate_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the text of each line. Raise UserError if a line would not fit into memory."""
    check_no_pipe(file)
    try:
        with file.open("rb") as opened:
            number = 0
            while line := opened.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise UserError(
                        f"{file}:{number}: has more than {MAX_LINE_BYTES >> 20} MiB; no run writes such a row"
                    )
                yield number, line
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error_reason(error)}") from error
