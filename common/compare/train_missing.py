"""Training of the runs that a comparison needs: missing runs start one after the other, interrupted runs resume.

The directory of a run is named after its config. The same command therefore finds the run again.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from common.cluster.discovery import compose_config
from common.cluster.training_process import read_failure_reason, start_training, stop_training
from common.config.compose import collect_values
from common.config.models import find_library
from common.config.overrides import expand_sweep, normalize_arguments
from common.config.strategies import PACKAGES, list_strategies
from common.errors import USER_ERROR, UserError
from common.interpreter import check_import, check_interpreter
from common.training.stop import interrupt_on_signals

RESERVED_KEYS = ("run_dir", "run_name", "resume", "strategy", "python")  # keys that this command sets
REPLICA_KEYS = ("strategy.replicas", "strategy.workers")
POLL_SECONDS = 0.2
TAIL_BYTES = 4096  # read from the end of metrics.jsonl; longer than a row


@dataclass(frozen=True)
class PlannedRun:
    """A training run that is to be complete before the comparison."""

    title: str  # such as "torch ddp replicas=2"
    framework: str  # "torch" or "tf"
    overrides: tuple[str, ...]  # overrides of the training config
    steps: int | None  # None if the size of the data decides
    directory: Path
    library: str | None = None  # the module of the library that the model is from

    @property
    def log(self) -> Path:
        """The file of the run's output, beside its directory."""
        return self.directory.with_name(f"{self.directory.name}.log")


def plan_runs(
    names: Sequence[str], overrides: Sequence[str], root: Path, environments: Mapping[str, str]
) -> list[PlannedRun]:
    """Plan the runs of `run=[torch:ddp,tf:mirrored@old]`, and check the interpreters of their environments.

    A key with several values, such as `strategy.replicas=1,2`, gives a run for each combination of values. Numbers of
    replicas do not apply to `single`, which always has one.

    Args:
        names: FRAMEWORK:STRATEGY of each run, or FRAMEWORK:STRATEGY@ENVIRONMENT.
        overrides: Overrides of the training config.
        root: The directory for the run directories.
        environments: The interpreters of other environments by name.

    Raises:
        UserError: A name or a key is wrong. Errors of Hydra and OmegaConf are raised as they are.
    """
    for override in overrides:
        key = override.partition("=")[0].lstrip("+~")
        if key in RESERVED_KEYS:
            advice = "use environments={NAME: PATH} and run=[...@NAME]" if key == "python" else "remove it"
            raise UserError(f"{key}: set by run=[...]; {advice}")
    _check_environments(names, environments)
    planned: dict[Path, PlannedRun] = {}
    for name in names:
        framework, strategy, environment = _split_name(name)
        if framework not in PACKAGES or strategy not in list_strategies(framework):
            known = [f"{side}:{kind}" for side in PACKAGES for kind in list_strategies(side)]
            raise UserError(f"run={name}: no such strategy; use one of {', '.join(known)}")
        applicable = [text for text in overrides if strategy != "single" or not text.startswith(REPLICA_KEYS)]
        _, *arguments = normalize_arguments(["-m", *applicable])  # -m allows several values of a key
        choices = [expand_sweep(text) for text in arguments]
        for chosen in product(*choices):
            swept = [_shorten(text) for text, options in zip(chosen, choices, strict=True) if len(options) > 1]
            run = _plan_run(framework, strategy, chosen, swept, root)
            if environment:
                run = _move_to_environment(run, environment, environments[environment])
            planned.setdefault(run.directory, run)
    return list(planned.values())


def _plan_run(framework: str, strategy: str, chosen: Sequence[str], swept: Sequence[str], root: Path) -> PlannedRun:
    """Plan one run. `swept`: the end of each chosen override that has several values, such as "replicas=2"."""
    overrides = (f"strategy={strategy}", *chosen)
    config = compose_config(framework, overrides, os.environ)
    resolved = {key: value for key, value in collect_values(config).items() if key not in RESERVED_KEYS}
    fingerprint = hashlib.sha256(json.dumps(resolved, sort_keys=True, default=str).encode()).hexdigest()[:8]
    directory = root.absolute() / f"{framework}-{strategy}-{fingerprint}"
    title = " ".join([framework, strategy, *swept])
    library = find_library(config.model, framework)
    return PlannedRun(title, framework, overrides, config.train.steps, directory, library)


def _shorten(override: str) -> str:
    """Return an override without the group of its key."""
    key, _, value = override.partition("=")
    return f"{key.rpartition('.')[2]}={value}"


def _split_name(name: str) -> tuple[str, str, str]:
    """Return the framework, the strategy and the environment of FRAMEWORK:STRATEGY@ENVIRONMENT."""
    side, _, environment = name.partition("@")
    framework, _, strategy = side.partition(":")
    return framework, strategy, environment


def _check_environments(names: Sequence[str], environments: Mapping[str, str]) -> None:
    """Raise UserError if a run names an unknown environment, or one whose interpreter cannot run its side."""
    for environment in environments:
        if not re.fullmatch(r"[\w.-]+", environment):
            raise UserError(f"environments={{{environment}: ...}}: must be a name of letters, digits, '.', '_' and '-'")
    for name in names:
        framework, _, environment = _split_name(name)
        if "@" in name and environment not in environments:
            known = f"there are {', '.join(environments)}" if environments else "environments has none"
            raise UserError(f"run={name}: no environment {environment}; {known}; add {environment}: PATH to it")
    sides = dict.fromkeys((framework, environment) for framework, _, environment in map(_split_name, names))
    for framework, environment in sides:
        if environment and framework in PACKAGES:
            check_interpreter(f"environments.{environment}", environments[environment], framework)
            check_import(f"environments.{environment}", environments[environment], framework)


def _move_to_environment(run: PlannedRun, name: str, python: str) -> PlannedRun:
    """Return a planned run that trains in another environment. Its directory depends on the versions of packages."""
    versions = check_interpreter(f"environments.{name}", python, run.framework, run.library)
    text = json.dumps([run.directory.name, str(Path(python).expanduser().absolute()), versions], sort_keys=True)
    fingerprint = hashlib.sha256(text.encode()).hexdigest()[:8]
    strategy = run.overrides[0].partition("=")[2]
    return replace(
        run,
        title=f"{run.title} @{name}",
        overrides=(*run.overrides, f"python={python}"),
        directory=run.directory.with_name(f"{run.framework}-{strategy}-{name}-{fingerprint}"),
    )


def train_missing(planned: Sequence[PlannedRun]) -> dict[Path, str]:
    """Train the planned runs one after the other. A finished run ends at once, because of resume=auto.

    Returns:
        The reasons why some runs failed, by their directories.

    Raises:
        UserError: A setting of a run is wrong.
        Interrupted: The command was interrupted; the run that was training has saved a checkpoint.
    """
    failures = {}
    with interrupt_on_signals(), _show_progress(planned) as bars:
        for run in planned:
            run.directory.parent.mkdir(parents=True, exist_ok=True)
            overrides = [*run.overrides, f"run_dir={run.directory}", "resume=auto"]
            process = start_training(run.framework, overrides, run.log)
            try:
                _wait(process, run, bars)
            finally:
                stop_training(process)
            if process.returncode:
                failures[run.directory] = f"{run.title}: {read_failure_reason(run.log, run.directory)}"
            if process.returncode in (0, USER_ERROR):
                run.log.unlink()
            if process.returncode == USER_ERROR:
                raise UserError(failures[run.directory])
    return failures


@dataclass(frozen=True)
class _ProgressBars:
    """Progress bars on the terminal, one for each run."""

    progress: Progress
    tasks: dict[PlannedRun, TaskID]

    def update(self, run: PlannedRun, status: str, step: int | None = None) -> None:
        self.progress.update(self.tasks[run], status=status, completed=step)


@contextmanager
def _show_progress(planned: Sequence[PlannedRun]) -> Iterator[_ProgressBars | None]:
    """Show a progress bar for each run. Yield None if standard output is not a terminal."""
    if not sys.stdout.isatty():
        yield None
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[status]}")
    with Progress(*columns, TimeElapsedColumn(), console=Console()) as progress:
        tasks = {run: progress.add_task(run.title, start=False, total=run.steps, status="waiting") for run in planned}
        yield _ProgressBars(progress, tasks)


def _wait(process: "subprocess.Popen[bytes]", run: PlannedRun, bars: _ProgressBars | None) -> None:
    """Show the progress of a run until its process ends. Without progress bars, print a line at the end."""
    if bars is not None:
        bars.progress.start_task(bars.tasks[run])
        bars.update(run, "starting")
    while process.poll() is None:
        _show_last_step(run, bars)
        time.sleep(POLL_SECONDS)
    _show_last_step(run, bars)
    if bars is not None:
        bars.progress.stop_task(bars.tasks[run])
    else:
        print(f"{run.title}: {'failed' if process.returncode else 'completed'}, {run.directory}", flush=True)


def _show_last_step(run: PlannedRun, bars: _ProgressBars | None) -> None:
    last = _read_last_row(run.directory / "metrics.jsonl") if bars is not None else None
    if bars is not None and last is not None:
        step, loss = last
        bars.update(run, "loss not finite" if loss is None else f"loss {loss:.4f}", step)


def _read_last_row(path: Path) -> tuple[int, float | None] | None:
    """Return the step and the loss of the last complete row of metrics.jsonl; the loss is None if it is null there."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        lines = file.read().rpartition(b"\n")[0].splitlines()
    if not lines:
        return None
    row = json.loads(lines[-1])
    return row["step"], row["loss"]
