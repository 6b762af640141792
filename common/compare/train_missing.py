"""Run what is to be compared: missing trainings are started one after the other, interrupted ones are resumed."""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from common.cluster.discovery import compose_config
from common.cluster.training_process import read_failure_reason, start_training, stop_training
from common.config.compose import collect_values
from common.config.overrides import expand_sweep, normalize_arguments
from common.config.strategies import PACKAGES, list_strategies
from common.errors import USER_ERROR, UserError
from common.training.stop import interruptible

OWN = ("run_dir", "run_name", "resume", "strategy")  # keys that this command sets
REPLICAS = ("strategy.replicas", "strategy.workers")
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class PlannedRun:
    """One training. steps: None where the size of the data decides. directory: named after all resolved values."""

    title: str
    framework: str
    overrides: tuple[str, ...]
    steps: int | None
    directory: Path

    @property
    def log(self) -> Path:
        return self.directory.with_suffix(".log")


def plan_runs(names: Sequence[str], overrides: Sequence[str], root: Path) -> list[PlannedRun]:
    """The trainings of `run=[torch:ddp,tf:mirrored]`, each with every combination of values a,b of a key.

    `single` has one replica, whatever others have. Raises UserError, and Hydra's and OmegaConf's errors.
    """
    for each in overrides:
        key = each.partition("=")[0].lstrip("+~")
        if key in OWN:
            raise UserError(f"{key}: is set by run=[...]; leave it out")
    planned: dict[Path, PlannedRun] = {}
    for name in names:
        framework, _, strategy = name.partition(":")
        if framework not in PACKAGES or strategy not in list_strategies(framework):
            known = [f"{side}:{each}" for side in PACKAGES for each in list_strategies(side)]
            raise UserError(f"run={name}: no such strategy; there are {', '.join(known)}")
        given = [each for each in overrides if strategy != "single" or not each.startswith(REPLICAS)]
        values = [expand_sweep(each) for each in normalize_arguments(["-m", *given])[1:]]
        for chosen in product(*values):
            swept = [text.rpartition(".")[2] for text, several in zip(chosen, values, strict=True) if len(several) > 1]
            training = _training(framework, strategy, chosen, swept, root)
            planned.setdefault(training.directory, training)
    return list(planned.values())


def _training(framework: str, strategy: str, chosen: Sequence[str], swept: Sequence[str], root: Path) -> PlannedRun:
    overrides = (f"strategy={strategy}", *chosen)
    config = compose_config(framework, overrides, os.environ)
    values = {key: value for key, value in collect_values(config).items() if key not in OWN}
    fingerprint = hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:8]
    directory = root.absolute() / f"{framework}-{strategy}-{fingerprint}"
    title = " ".join([framework, strategy, *swept])
    return PlannedRun(title, framework, overrides, config.train.steps, directory)


def train_missing(trainings: Sequence[PlannedRun]) -> list[str]:
    """Run them in turn; what is finished is left as it is. Returns why some failed.

    Raises UserError for a mistake in the settings, and Interrupted, after the training that was running has saved a
    checkpoint.
    """
    failed = []
    with interruptible(), _shown(trainings) as bars:
        for training in trainings:
            training.directory.parent.mkdir(parents=True, exist_ok=True)
            overrides = [*training.overrides, f"run_dir={training.directory}", "resume=auto"]
            process = start_training(training.framework, overrides, training.log)
            try:
                _follow(process, training, bars)
            finally:
                stop_training(process)
            if process.returncode:
                failed.append(f"{training.title}: {read_failure_reason(training.log, training.directory)}")
            if process.returncode in (0, USER_ERROR):
                training.log.unlink()
            if process.returncode == USER_ERROR:
                raise UserError(failed[-1])
    return failed


Bars = tuple[Progress, dict[PlannedRun, TaskID]] | None


@contextmanager
def _shown(trainings: Sequence[PlannedRun]) -> Iterator[Bars]:
    """One line for each training: on a terminal a bar; elsewhere a line when it has ended."""
    if not sys.stdout.isatty():
        yield None
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[said]}")
    with Progress(*columns, TimeElapsedColumn(), console=Console()) as progress:
        yield (
            progress,
            {each: progress.add_task(each.title, start=False, total=each.steps, said="waiting") for each in trainings},
        )


def _follow(process: "subprocess.Popen[bytes]", training: PlannedRun, bars: Bars) -> None:
    """Show the last step until the training ends."""
    if bars is not None:
        bars[0].start_task(bars[1][training])
        bars[0].update(bars[1][training], said="starting")
    while process.poll() is None:
        _show(training, bars)
        time.sleep(POLL_SECONDS)
    _show(training, bars)
    if bars is not None:
        bars[0].stop_task(bars[1][training])
    else:
        print(f"{training.title}: {'failed' if process.returncode else 'completed'}, {training.directory}", flush=True)


def _show(training: PlannedRun, bars: Bars) -> None:
    row = _last_row(training.directory / "metrics.jsonl")
    if bars is not None and row is not None:
        bars[0].update(bars[1][training], completed=row["step"], said=f"loss {row['loss']:.4f}")


def _last_row(path: Path) -> dict[str, float] | None:
    """The last complete row of a file of rows."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        lines = file.read().rpartition(b"\n")[0].splitlines()
    if not lines:
        return None
    row: dict[str, float] = json.loads(lines[-1])
    return row
