"""The display of a run: a progress bar on a terminal, plain lines in a file or a pipe, and a closing table."""

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from common.errors import USER_ERROR, escape_control_characters
from common.records.rows import list_metrics
from common.records.summary import read_final_summary
from common.training.observer import Observer
from common.training.rows import Row

if TYPE_CHECKING:  # a run starts sooner without this import
    from rich.progress import Progress

log = logging.getLogger("lockstep")

FAILED_START = "failed: "  # start of the line of train.log with the error of a chief that could not begin to train


def log_to(run_dir: Path | None) -> None:
    """Send Lockstep's messages to standard output, and to train.log of the run directory if there is one.

    The chief passes its run directory. On a terminal it leaves standard output to the progress bar.
    """
    handlers: list[logging.Handler] = []
    if run_dir is not None:
        handlers.append(logging.FileHandler(run_dir / "train.log"))
    if run_dir is None or not sys.stdout.isatty():
        handlers.append(logging.StreamHandler(sys.stdout))
    for handler in handlers:
        handler.setFormatter(_Formatter())
    log.handlers = handlers
    log.setLevel(logging.INFO)
    log.propagate = False
    logging.raiseExceptions = False  # an incomplete train.log on a full disk is not an error


class _Formatter(logging.Formatter):
    """Formatter that shows control characters, since a message may quote a file of someone else."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        return escape_control_characters(super().format(record))


class TrainingProgress(Observer):
    """Observer that shows the steps and evaluations of a run.

    Args:
        title: text before the progress bar.
        total_steps: number of updates of the whole run.
        log_every: number of updates between plain lines; the first update gets a line too.
    """

    def __init__(self, title: str, total_steps: int, log_every: int) -> None:
        self._total, self._log_every = total_steps, log_every
        self._has_logged = False
        self._bar: Progress | None = None
        if sys.stdout.isatty():
            self._bar = _make_bar(title)
            self._task = self._bar.add_task("train", total=total_steps, loss=float("nan"), speed=0.0)
            self._bar.start()

    @override
    def record_steps(self, rows: list[Row], traffic: list[Row], speed: float) -> None:
        """Show the last update of a block."""
        last = rows[-1]
        if self._bar is not None:
            self._bar.update(self._task, completed=last["step"], loss=last["loss"], speed=speed)
        if last["step"] % self._log_every == 0 or last["step"] == self._total or not self._has_logged:
            self._has_logged = True
            log.info(
                "step %d/%d  loss %.6f  grad_norm %.4f  learning_rate %.3g  %.1f examples/s",
                *(last["step"], self._total, last["loss"], last["grad_norm"], last["learning_rate"], speed),
            )

    @override
    def record_evaluation(self, row: Row) -> None:
        """Show a line; on a terminal, above the progress bar."""
        metrics = "".join(
            f"  {name.replace('_', ' ')} {_format_number(row[name], '.4f')}" for name in list_metrics(row)
        )
        text = f"step {row['step']}  validation loss {row['loss']:.6f}{metrics} ({row['count']} examples)"
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        log.info(text)

    def close(self) -> None:
        """Restore the terminal."""
        if self._bar is not None:
            self._bar.stop()


def _make_bar(title: str) -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}  {task.fields[speed]:.0f} examples/s  left"),
        TimeRemainingColumn(),
        console=Console(),
    )


def report_end(run_dir: Path, exit_code: int) -> None:
    """Print a table of the results of a run, and its error on standard error. Only the command of a run calls it.

    Nothing is printed for a user's error, which the chief has printed, or if a full disk left no summary.
    """
    summary = None if exit_code == USER_ERROR else read_final_summary(run_dir)
    if summary is None:
        return
    from rich.table import Table

    from common.terminal import SafeConsole

    table = Table(title=f"{summary['framework']} {summary['strategy']} x{summary['replicas']}: {summary['status']}")
    for column in ("steps", "final loss", "accuracy", "examples/s", "tokens/s", "peak memory"):
        table.add_column(column, justify="right")
    peaks = [peak for peak in summary.get("peak_memory_bytes") or [] if peak is not None]
    table.add_row(
        str(summary.get("steps", 0)),
        _format_number(summary.get("final_loss"), ".6f"),
        _format_number(summary.get("accuracy"), ".4f"),
        _format_number(summary.get("examples_per_second"), ".1f"),
        _format_number(summary.get("tokens_per_second") or None, ".0f"),
        f"{max(peaks) / 2**20:.0f} MiB" if peaks else "-",
    )
    console = SafeConsole()
    console.print(table)
    console.print(f"run directory: {run_dir}", highlight=False, soft_wrap=True)
    if "error" in summary:
        sys.stdout.flush()
        problem = escape_control_characters(f"{summary['status']}: {summary['error']}")
        print(f"{problem}{point_to_log(run_dir)}", file=sys.stderr)


def _format_number(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def point_to_log(run_dir: Path) -> str:
    """Return the end of an error that names the log of the run; "" if the log is missing or has no lines."""
    log_file = run_dir / "train.log"
    return f"; see {log_file}" if log_file.exists() and log_file.stat().st_size else ""
