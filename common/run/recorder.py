"""The recorder: an observer that writes what a run measures, as rows and for TensorBoard."""

import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import IO

sys.modules.setdefault("tensorboard.compat.notf", ModuleType("notf"))  # its event writer then imports no TensorFlow

from tensorboard.compat.proto.event_pb2 import Event  # noqa: E402
from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: E402
from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: E402

from common.errors import build_write_error  # noqa: E402
from common.run.rows import append_rows, keep_rows, scalars  # noqa: E402
from common.training.observer import Row  # noqa: E402
from common.training.state import Position, State  # noqa: E402


class Recorder:
    """Appends complete rows only, so that a killed run leaves valid files.

    start: where the run begins; rows after it are dropped, since they will be written again. trained_by: the framework
    and the strategy, which the first row says.
    """

    def __init__(self, run_dir: Path, start: Position, trained_by: str) -> None:
        self.run_dir = run_dir
        self._said: Row = {"trained_by": trained_by}
        kept = keep_rows(run_dir, start)
        shutil.rmtree(run_dir / "tensorboard", ignore_errors=True)
        self._metrics = (run_dir / "metrics.jsonl").open("ab")
        self._evals = (run_dir / "evals.jsonl").open("ab")
        self._traffic: IO[bytes] | None = None  # only some strategies have any
        self._events = EventFileWriter(str(run_dir / "tensorboard"))
        for row in kept:
            self._scalars(row)

    def steps(self, rows: list[Row], traffic: list[Row], speed: float) -> None:
        """Append rows of metrics.jsonl and traffic.jsonl. Raises UserError where the disk is full."""
        if rows and self._said:
            rows = [{**rows[0], **self._said}, *rows[1:]]
            self._said = {}
        append_rows(self._metrics, rows)
        for row in rows:
            self._scalars(row)
        if traffic and self._traffic is None:
            self._traffic = (self.run_dir / "traffic.jsonl").open("ab")
        if self._traffic is not None:
            append_rows(self._traffic, traffic)

    def evaluation(self, row: Row) -> None:
        """Append a row of evals.jsonl. Raises UserError where the disk is full."""
        append_rows(self._evals, [row])
        self._scalars(row)

    def save(self, state: State, position: Position) -> None:
        """Flush the rows to the disk: a checkpoint must not survive a power failure that its rows do not.

        Raises UserError where the disk is full.
        """
        for file in filter(None, (self._metrics, self._evals, self._traffic)):
            try:
                os.fsync(file.fileno())
            except OSError as error:
                raise build_write_error(file.name, error) from error

    def close(self) -> None:
        """Flush and close every file."""
        for file in filter(None, (self._metrics, self._evals, self._traffic, self._events)):
            with suppress(OSError):  # a full disk has been reported
                file.close()

    def _scalars(self, row: Row) -> None:
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(row).items()]
        try:
            self._events.add_event(Event(wall_time=time.time(), step=row["step"], summary=Summary(value=values)))
        except OSError as error:
            raise build_write_error(self.run_dir / "tensorboard", error) from error
