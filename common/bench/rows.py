"""The rows of a contestant's metrics.jsonl, and what it does per second in a block between two stops."""

import json
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class Rows:
    """The complete rows of a file that grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all: list[Row] = []
        self._read = 0  # bytes

    def read(self) -> list[Row]:
        """All rows so far. An incomplete last line is left for later."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            complete = new[: new.rfind(b"\n") + 1]
            self._read += len(complete)
            self.all += [json.loads(line) for line in complete.splitlines()]
        return self.all


def between_stops(rows: list[Row], before: int, stopped_seconds: float) -> list[Row]:
    """The rows that were measured since the contestant was last continued.

    before: how many rows there were when it was continued. stopped_seconds: how long it had been stopped for. Rows that
    were measured before the stop may be written after it, since rows are written in groups; the time from the last of
    them to the next row contains the stop.
    """
    for index in range(max(before, 1), len(rows)):
        if rows[index]["seconds"] - rows[index - 1]["seconds"] >= stopped_seconds:
            return rows[index:]
    return []


def per_second(rows: list[Row], unit: str) -> float:
    """What was done per second from the first to the last of these rows. unit: a counter, such as "examples"."""
    done = rows[-1].get(unit, 0) - rows[0].get(unit, 0)
    return float(done / (rows[-1]["seconds"] - rows[0]["seconds"]))
