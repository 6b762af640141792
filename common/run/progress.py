"""What a person sees of a run: a progress bar on a terminal, plain lines elsewhere, a closing table."""

import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from common.config.tasks import METRICS
from common.errors import USER_ERROR
from common.training.observer import Row
from common.training.state import Position, State

if TYPE_CHECKING:  # a run starts sooner without it
    from rich.progress import Progress

log = logging.getLogger("lockstep")


def log_to(run_dir: Path | None) -> None:
    """Send Lockstep's messages to standard output and, in the chief, to the run's train.log.

    On a terminal the chief leaves standard output to the progress bar.
    """
    handlers: list[logging.Handler] = []
    if run_dir is not None:
        handlers.append(logging.FileHandler(run_dir / "train.log"))
    if run_dir is None or not sys.stdout.isatty():
        handlers.append(logging.StreamHandler(sys.stdout))
    log.handlers = handlers
    log.setLevel(logging.INFO)
    log.propagate = False
    logging.raiseExceptions = False  # a train.log that a full disk cuts short is no error of its own


class TrainingProgress:
    """An observer that shows the steps of a run as they are recorded."""

    def __init__(self, title: str, total_steps: int, log_every: int) -> None:
        self._total, self._log_every = total_steps, log_every
        self._started = False
        self._bar: Progress | None = None
        if sys.stdout.isatty():
            self._bar = _bar(title)
            self._task = self._bar.add_task("train", total=total_steps, loss=float("nan"), speed=0.0)
            self._bar.start()

    def steps(self, rows: list[Row], traffic: list[Row], speed: float) -> None:
        """Show the last of these rows."""
        last = rows[-1]
        if self._bar is not None:
            self._bar.update(self._task, completed=last["step"], loss=last["loss"], speed=speed)
        if last["step"] % self._log_every == 0 or last["step"] == self._total or not self._started:
            self._started = True
            log.info(
                "step %d/%d  loss %.6f  grad_norm %.4f  learning_rate %.3g  %.1f examples/s",
                *(last["step"], self._total, last["loss"], last["grad_norm"], last["learning_rate"], speed),
            )

    def evaluation(self, row: Row) -> None:
        """Show a line, on a terminal above the bar."""
        metrics = "".join(f"  {name.replace('_', ' ')} {row[name]:.4f}" for name in METRICS if name in row)
        text = f"step {row['step']}  validation loss {row['loss']:.6f}{metrics} ({row['count']} examples)"
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        log.info(text)

    def save(self, state: State, position: Position) -> None:
        """Nothing to show."""

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()


def _bar(title: str) -> "Progress":
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
    """In the command: print how the run ended and what it measured; on standard error what went wrong.

    Nothing for a user's error, which the chief has printed, or where a full disk has no summary.
    """
    file = run_dir / "summary.json"
    if exit_code == USER_ERROR or not file.exists():
        return
    from rich.console import Console
    from rich.table import Table

    summary = json.loads(file.read_text())

    def shown(key: str, form: str) -> str:
        return "-" if summary[key] is None else format(summary[key], form)

    table = Table(title=f"{summary['framework']} {summary['strategy']} x{summary['replicas']}: {summary['status']}")
    for column in ("steps", "final loss", "accuracy", "examples/s", "tokens/s", "peak memory"):
        table.add_column(column, justify="right")
    peaks = summary["peak_memory_bytes"]
    table.add_row(
        str(summary["steps"]),
        shown("final_loss", ".6f"),
        shown("accuracy", ".4f"),
        shown("examples_per_second", ".1f"),
        shown("tokens_per_second", ".0f") if summary["tokens_per_second"] else "-",
        f"{max(peaks) / 2**20:.0f} MiB" if peaks else "-",
    )
    console = Console()
    console.print(table)
    console.print(f"run directory: {run_dir}", highlight=False, soft_wrap=True)
    if "error" in summary:
        sys.stdout.flush()
        print(f"{summary['status']}: {summary['error']}{see_log(run_dir)}", file=sys.stderr)


def see_log(run_dir: Path) -> str:
    """The end of an error that names the run's log; empty where there is none, as where not all ranks arrived."""
    log_file = run_dir / "train.log"
    return f"; see {log_file}" if log_file.exists() else ""
