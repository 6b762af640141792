"""Reads runs from their directories, at full precision."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from common.compare.columns import read_columns
from common.compare.read import read_config, read_summary, read_traffic
from common.config.tasks import METRICS as TASK_METRICS
from common.errors import UserError
from common.profile.profile import Profile, read_profile

REQUIRED_FILES = ("config.yaml", "metrics.jsonl")
SUMMARIES = ("summary.json", "running.json")
RUNNING = "running"  # the status of a run that has not ended
METRICS = ("loss", "grad_norm", "learning_rate", "examples", "tokens")
MEASURED = ("seconds",)  # what the first runs may not have recorded
UPDATES = ("worker", "staleness")  # what only the rows of a parameter server have
EVALS = ("loss", "examples")
EVALUATED = (*TASK_METRICS, "duration")  # what only evaluations of some tasks have
MOST_NUMBERS = 3  # of replicas in a label; of more, only the first and the last
KILLED = "summary.json is missing: killed before it could write one; resume it with resume=auto"


@dataclass(eq=False)
class Run:
    """One run directory. `metrics` and `evals` hold float64 arrays as long as `steps` and `eval_steps`; NaN is null."""

    path: Path
    config: dict[str, Any]  # flat: {"train.seed": 1, ...}
    summary: dict[str, Any]
    steps: np.ndarray  # sorted, each once
    metrics: dict[str, np.ndarray]
    eval_steps: np.ndarray
    evals: dict[str, np.ndarray]
    repeated_steps: list[int]  # those with more than one row; the last row counts
    traffic: dict[str, np.ndarray] = field(default_factory=dict)  # bytes by kind, [steps, replicas]; see read_traffic
    updates: dict[str, np.ndarray] = field(default_factory=dict)  # of a parameter server: UPDATES, as long as `steps`
    profile: Profile | None = None
    notes: list[str] = field(default_factory=list)
    label: str = ""
    missing: frozenset[str] = frozenset()  # the metrics that its files do not have; they are NaN
    external: str = ""  # what another program's file is, in words; the experiment of such a run is unknown
    unit: str = "step"  # what `steps` counts

    def __post_init__(self) -> None:
        if self.external:
            return
        replicas = f" x{self.replicas}" if self.replicas > 1 else ""
        if self.replica_changes:
            numbers = [str(number) for _, number in self.replica_changes]
            replicas = f" x{'→'.join(numbers if len(numbers) <= MOST_NUMBERS else (numbers[0], '…', numbers[-1]))}"
        parts = (self.framework, self.strategy, variant(self.strategy, self.config))
        self.label = self.label or " ".join(filter(None, parts)) + replicas

    def __str__(self) -> str:
        return self.label

    @property
    def running(self) -> bool:
        """Whether it has not ended, or was killed with its command before it could say so."""
        return bool(self.summary["status"] == RUNNING)

    @property
    def framework(self) -> str:
        return str(self.summary["framework"])

    @property
    def strategy(self) -> str:
        return str(self.summary["strategy"])

    @property
    def replicas(self) -> int:
        return int(self.summary["replicas"] or 1)

    @property
    def replica_changes(self) -> list[tuple[int, int]]:
        """Each number of replicas after the first step that it trained; empty where the number never changed."""
        return [(each["step"], each["replicas"]) for each in self.summary.get("replicas_changed", [])]

    @property
    def trained_by(self) -> list[tuple[int, str]]:
        """Each framework and strategy after the first step that it trained; empty where the run had only one."""
        return [(each["step"], each["trained_by"]) for each in self.summary.get("trained_by", [])]

    @property
    def precision(self) -> str:
        return "unknown" if self.external else str(self.config.get("train.precision", "float32"))

    @property
    def plan_version(self) -> Any:
        """Of the batch plan, which orders the examples. The first runs did not record theirs."""
        return self.summary.get("plan_version", 1)

    @cached_property
    def staleness(self) -> dict[int, int]:
        """The number of updates of each staleness; empty where the run did not record it."""
        histogram = self.summary.get("staleness", {})
        return {staleness: histogram[str(staleness)] for staleness in sorted(map(int, histogram))}

    @property
    def asynchronous(self) -> bool:
        """Whether it applies updates as they become ready, so that its steps do not correspond to another run's."""
        unbounded = self.strategy == "parameter_server" and self.config.get("strategy.max_staleness") != 0
        return unbounded or any(self.staleness.keys() - {0})

    def has(self, name: str) -> bool:
        """Whether the run recorded this metric."""
        return name not in self.missing

    def evaluated(self, name: str) -> bool:
        """Whether an evaluation recorded this metric."""
        return bool(np.isfinite(self.evals[name]).any())

    def fingerprint(self, name: str) -> str | None:
        """`name`: token_cache or initial_weights. None where the run did not record it."""
        fingerprints = self.summary.get("fingerprints")
        return fingerprints.get(name) if isinstance(fingerprints, dict) else None


def variant(strategy: str, config: Mapping[str, Any]) -> str:
    """What distinguishes runs of one strategy in labels, e.g. the algorithm of allreduce; empty for the usual one."""
    if strategy not in VARIANTS:
        return ""
    key, describe = VARIANTS[strategy]
    return describe(config.get(key))


def _except(usual: str | None) -> Callable[[Any], str]:
    return lambda value: "" if value in (None, usual) else str(value)


# The key that distinguishes the variants of a strategy, and how a label describes its value.
VARIANTS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "dp": ("strategy.loss", _except("gathered")),
    "ddp": ("strategy.comm_hook", _except("none")),
    "allreduce": ("strategy.algorithm", _except(None)),
    "parameter_server": ("strategy.max_staleness", lambda bound: "synchronous" if bound == 0 else ""),
}


def summary_file(path: Path) -> Path:
    """summary.json, or running.json, which a run has until it has ended."""
    return next((file for name in SUMMARIES if (file := path / name).is_file()), path / SUMMARIES[0])


def check_files(path: Path) -> None:
    """Raise UserError where `path` is not a directory or lacks a file that every run has."""
    if not os.path.isdir(path):
        what = (
            "a file; name the directory of a run, or NAME=FILE of one from elsewhere"
            if os.path.exists(path)
            else "no such run directory"
        )
        raise UserError(f"{path}: {what}")
    for name in REQUIRED_FILES:
        if not os.path.isfile(path / name):
            raise UserError(f"{path}: not a run directory: {name} is missing")
    if not summary_file(path).is_file():
        raise UserError(f"{path}: {KILLED}")


def load_run(path: Path) -> Run:
    """Read one run directory. Raises UserError that names the file (and line) that is missing or malformed."""
    check_files(path)
    notes: list[str] = []
    summary = read_summary(summary_file(path))
    of_updates = UPDATES if summary["strategy"] == "parameter_server" else ()
    optional = (*MEASURED, *of_updates)
    steps, metrics, repeated_steps = read_columns(path / "metrics.jsonl", METRICS, notes, optional)
    evals_file, traffic_file = path / "evals.jsonl", path / "traffic.jsonl"
    eval_steps, evals, _ = (
        read_columns(evals_file, EVALS, notes, EVALUATED) if evals_file.is_file() else (np.array([], int), {}, [])
    )
    run = Run(
        path=path,
        config=read_config(path / "config.yaml"),
        summary=summary,
        steps=steps,
        metrics=metrics,
        eval_steps=eval_steps,
        evals=evals or {name: np.array([]) for name in (*EVALS, *EVALUATED)},
        repeated_steps=repeated_steps,
        updates={name: metrics.pop(name) for name in of_updates},
        profile=read_profile(path, summary["framework"], notes),
        notes=notes,
    )
    if traffic_file.is_file():
        first = run.replica_changes[-1][0] if run.replica_changes else 0
        run.traffic = read_traffic(traffic_file, run.replicas, first, notes)
    return run


def load_runs(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """The runs that can be read, and for each of the others an error that names the file."""
    runs, errors = [], []
    for path in paths:
        try:
            runs.append(load_run(path))
        except UserError as error:
            errors.append(str(error))
        else:
            _share_columns(runs)
    return runs, errors


def _share_columns(runs: list[Run]) -> None:
    """Let the last run hold no second copy of what an earlier one has, such as the examples of each step."""
    *earlier, last = runs
    for run in earlier:
        if np.array_equal(run.steps, last.steps):
            last.steps = run.steps
            for name, column in run.metrics.items():
                if np.array_equal(column, last.metrics[name], equal_nan=True):
                    last.metrics[name] = column
