"""The rows that a contestant appends to its metrics.jsonl, and its rates in a block of time."""

import json
from pathlib import Path

Row = dict[str, float]  # "step", "seconds", and counters such as "examples"; other columns are not used


class MetricsTail:
    """Reader of a file of rows that grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = []
        self._read_bytes = 0

    def read(self) -> list[Row]:
        """Return all complete rows so far; an incomplete last line is read by a later call."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read_bytes)
                content = file.read()
            complete = content[: content.rfind(b"\n") + 1]
            self._read_bytes += len(complete)
            self.rows += [json.loads(line) for line in complete.splitlines()]
        return self.rows


def select_rows_after_resume(rows: list[Row], count_before: int, suspended_seconds: float) -> list[Row]:
    """Return the rows that were measured since the contestant was last resumed.

    Rows are written in groups, so rows that were measured before the suspension may be written after it. The first row
    that was measured after the suspension is at least `suspended_seconds` later than the previous row.

    Args:
        rows: All rows of the contestant.
        count_before: The number of rows when the contestant was resumed.
        suspended_seconds: The seconds during which the contestant was suspended.
    """
    for index in range(max(count_before, 1), len(rows)):
        if rows[index]["seconds"] - rows[index - 1]["seconds"] >= suspended_seconds:
            return rows[index:]
    return []


def compute_rate(rows: list[Row], counter: str) -> float:
    """Return the rate per second of a counter, such as "examples", from the first to the last of these rows."""
    increase = rows[-1].get(counter, 0) - rows[0].get(counter, 0)
    return float(increase / (rows[-1]["seconds"] - rows[0]["seconds"]))
