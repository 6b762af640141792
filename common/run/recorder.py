"""Recorder: an observer of the training loop that writes the rows of a run and its TensorBoard events."""

import logging
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import IO

# With this module present, TensorBoard's event writer imports no TensorFlow.
sys.modules.setdefault("tensorboard.compat.notf", ModuleType("notf"))

from tensorboard.compat.proto.event_pb2 import Event  # noqa: E402
from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: E402
from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: E402
from typing_extensions import override  # noqa: E402

from common.errors import build_write_error  # noqa: E402
from common.run.files import drop_rows_after  # noqa: E402
from common.training.observer import Observer  # noqa: E402
from common.training.rows import (  # noqa: E402
    Row,
    append_rows,
    select_scalars,
)
from common.training.state import Position, State  # noqa: E402

log = logging.getLogger("lockstep")


class Recorder(Observer):
    """Observer that appends complete rows to metrics.jsonl, evals.jsonl and traffic.jsonl.

    Args:
        run_dir: the run directory.
        start: the position after which training starts. Later rows are dropped, since training writes them again.
        trained_by: the framework and the strategy, such as "torch ddp", a field of the first row of this process.
    """

    def __init__(self, run_dir: Path, start: Position, trained_by: str) -> None:
        self.run_dir = run_dir
        self._first_row_fields: Row = {"trained_by": trained_by}  # empty once they are written
        earlier_rows = drop_rows_after(run_dir, start)
        row_count = len({row["step"] for row in earlier_rows if "count" not in row})
        if row_count < start.step:
            log.warning(
                "metrics.jsonl has rows of %d of the %d steps before the checkpoint; the others are lost",
                row_count,
                start.step,
            )
        shutil.rmtree(run_dir / "tensorboard", ignore_errors=True)
        self._metrics = (run_dir / "metrics.jsonl").open("ab")
        self._evals = (run_dir / "evals.jsonl").open("ab")
        self._traffic: IO[bytes] | None = None  # opened if the strategy counts bytes
        self._events = EventFileWriter(str(run_dir / "tensorboard"))
        for row in earlier_rows:
            self._write_scalars(row)

    @override
    def record_steps(self, rows: list[Row], traffic: list[Row], speed: float) -> None:
        """Append rows of metrics.jsonl and traffic.jsonl. Raise UserError if the disk is full."""
        if rows and self._first_row_fields:
            rows = [{**rows[0], **self._first_row_fields}, *rows[1:]]
            self._first_row_fields = {}
        append_rows(self._metrics, rows)
        for row in rows:
            self._write_scalars(row)
        if traffic and self._traffic is None:
            self._traffic = (self.run_dir / "traffic.jsonl").open("ab")
        if self._traffic is not None:
            append_rows(self._traffic, traffic)

    @override
    def record_evaluation(self, row: Row) -> None:
        """Append a row of evals.jsonl. Raise UserError if the disk is full."""
        append_rows(self._evals, [row])
        self._write_scalars(row)

    @override
    def save(self, state: State, position: Position) -> None:
        """Flush the rows to the disk, so that no power failure leaves a checkpoint without the rows before it.

        Raise UserError if the disk is full.
        """
        for file in filter(None, (self._metrics, self._evals, self._traffic)):
            try:
                os.fsync(file.fileno())
            except OSError as error:
                raise build_write_error(file.name, error) from error

    def close(self) -> None:
        """Flush and close every file."""
        for file in filter(None, (self._metrics, self._evals, self._traffic, self._events)):
            with suppress(OSError):  # the full disk has been reported already
                file.close()

    def _write_scalars(self, row: Row) -> None:
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in select_scalars(row).items()]
        try:
            self._events.add_event(Event(wall_time=time.time(), step=row["step"], summary=Summary(value=values)))
        except OSError as error:
            raise build_write_error(self.run_dir / "tensorboard", error) from error
