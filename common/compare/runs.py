"""Runs, read from their directories at full precision.

An external run is a run of another program. Staleness, which only asynchronous runs have, is the number of updates that
other workers applied between a worker's read of the parameters and its own update.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from common.compare.columns import Columns, find_metrics, read_columns, read_traffic
from common.compare.run_files import check_run_files
from common.config.keys import Value
from common.config.saved_config import CONFIG, read_flat_values
from common.config.tasks import TASK_METRICS
from common.errors import UserError
from common.profile.profile import Profile, read_profile
from common.records.summary import Summary, find_summary_file, read_summary

RUNNING = "running"  # status of a run that has not ended
# examples and tokens are totals until the step
STEP_METRICS = ("loss", "grad_norm", "learning_rate", "examples", "tokens")
OPTIONAL_METRICS = ("seconds",)  # seconds since the start of the run; Lockstep's first versions did not record them
UPDATE_METRICS = ("worker", "staleness")  # number of the worker, and staleness; only in the rows of a parameter server
EVALUATION_METRICS = ("loss", "examples")
OPTIONAL_EVALUATION_METRICS = (*TASK_METRICS, "duration")  # such as accuracy; duration in seconds. A run may have more
MAX_REPLICA_CHANGES = 3  # numbers of replicas in a label; a longer list shows only the first and the last


@dataclass(eq=False)
class Run:
    """A run, with its metrics as float64 arrays. NaN stands for a value that was not recorded or is null."""

    path: Path
    config: dict[str, Value]  # value by key, such as "train.seed"; empty for an external run
    summary: Summary
    steps: np.ndarray  # sorted, without repetitions
    metrics: Columns  # STEP_METRICS and OPTIONAL_METRICS by name; each array is as long as `steps`
    eval_steps: np.ndarray  # steps after which the run evaluated
    evals: Columns  # metrics of the evaluations by name; each array is as long as `eval_steps`
    repeated_steps: list[int]  # steps that have several rows; the last row counts
    recorded_evaluations: frozenset[str] = frozenset()  # metrics that its evaluations recorded, finite or not
    bytes_by_kind: Columns = field(default_factory=dict)  # such as "gathered" or "memory", [rows, replicas]
    updates: Columns = field(default_factory=dict)  # UPDATE_METRICS of a parameter server, each as long as `steps`
    profile: Profile | None = None
    notes: list[str] = field(default_factory=list)  # sentences for the reader of a report
    label: str = ""  # short name in reports, such as "torch ddp x2"
    missing_metrics: frozenset[str] = frozenset()  # metrics that the files do not have; their arrays are NaN
    external_kind: str = ""  # description of an external file, such as "a CSV"; empty for a run of Lockstep
    unit: str = "step"  # what `steps` counts: "step" or "epoch"
    epoch_ends: list[int] | None = None  # last step of each epoch; None if unknown
    # Of external runs only:
    columns: Mapping[str, str] = field(default_factory=dict)  # name in the file, by metric
    loss_windows: np.ndarray | None = None  # number of steps that each loss is the mean of; None: each is of one step
    weighs_examples: bool = False  # whether the mean of a window weighs each example equally, rather than each step
    loss_rounding: float = 0.0  # largest error of a loss that has few digits
    grad_norm_rounding: float = 0.0  # largest error of a grad_norm that has few digits, relative

    def __post_init__(self) -> None:
        if self.external_kind:
            return
        replicas = f" x{self.replicas}" if self.replicas > 1 else ""
        if self.replica_changes:
            numbers = [str(number) for _, number in self.replica_changes]
            shown = numbers if len(numbers) <= MAX_REPLICA_CHANGES else (numbers[0], "…", numbers[-1])
            replicas = f" x{'→'.join(shown)}"
        parts = (self.framework, self.strategy, describe_variant(self.strategy, self.config))
        self.label = self.label or " ".join(filter(None, parts)) + replicas

    def __str__(self) -> str:
        return self.label

    @property
    def is_running(self) -> bool:
        """True if the run has not ended, or was killed before it could record its end."""
        return self.summary["status"] == RUNNING

    @property
    def framework(self) -> str:
        """The framework: "torch" or "tf"."""
        return str(self.summary["framework"])

    @property
    def strategy(self) -> str:
        """The kind of the strategy, such as "ddp"."""
        return str(self.summary["strategy"])

    @property
    def replicas(self) -> int:
        """The number of replicas at the end of the run."""
        return int(self.summary["replicas"] or 1)

    @property
    def replica_changes(self) -> list[tuple[int, int]]:
        """The number of replicas, as (first step, replicas) for each stretch of steps; empty if it never changed."""
        return [(change["step"], change["replicas"]) for change in self.summary.get("replicas_changed", [])]

    @property
    def trainers(self) -> list[tuple[int, str]]:
        """The trainers of the run, as (first step, "torch ddp") for each stretch of steps; empty if it has only one."""
        return [(change["step"], change["trained_by"]) for change in self.summary.get("trained_by", [])]

    @property
    def environment_changes(self) -> list[tuple[int, list[str]]]:
        """The changes of the environment, as (first step, what changed); empty if the run never resumed in another."""
        return [(change["step"], change["changes"]) for change in self.summary.get("environment_changed", [])]

    @property
    def precision(self) -> str:
        """The precision of matrix products, the coarsest of the run; "unknown" for an external run."""
        if self.external_kind:
            return "unknown"
        return str(self.config.get("train.matmul_precision") or self.config.get("train.precision", "float32"))

    @property
    def plan_version(self) -> int:
        """The version of the batch plan, the function that orders the examples. Runs that do not record it have 1."""
        return self.summary.get("plan_version", 1)

    @cached_property
    def staleness(self) -> dict[int, int]:
        """The number of updates for each staleness; empty if the run did not record staleness."""
        histogram = self.summary.get("staleness", {})
        return {staleness: histogram[str(staleness)] for staleness in sorted(map(int, histogram))}

    @property
    def is_asynchronous(self) -> bool:
        """True if the run applies updates as they become ready. Its steps then match no steps of another run."""
        may_be_stale = self.strategy == "parameter_server" and self.config.get("strategy.max_staleness") != 0
        return may_be_stale or any(self.staleness.keys() - {0})

    def has_metric(self, name: str) -> bool:
        """Check whether the run recorded a metric of its steps."""
        return name not in self.missing_metrics

    def has_evaluation(self, name: str) -> bool:
        """Check whether an evaluation of the run recorded a metric."""
        return name in self.evals and bool(np.isfinite(self.evals[name]).any())

    def get_fingerprint(self, name: str) -> str | None:
        """Return the hash of the data ("token_cache") or of the weights at the start ("initial_weights").

        Return None if the run did not record it.
        """
        return self.summary.get("fingerprints", {}).get(name)

    def get_traffic_per_step(self, kind: str) -> np.ndarray:
        """Return the mean bytes per step of a kind of traffic, for each replica; NaN if they are unknown.

        For "memory", which traffic.jsonl records too, return the peak.
        """
        values = self.bytes_by_kind.get(kind, np.full((1, self.replicas), np.nan))
        return np.asarray(values.max(axis=0) if kind == "memory" else values.mean(axis=0))


def describe_variant(strategy: str, config: Mapping[str, object]) -> str:
    """Describe the variant of a strategy for a label, such as "ring" for `allreduce`; empty for the default variant."""
    if strategy not in VARIANTS:
        return ""
    key, describe = VARIANTS[strategy]
    return describe(config.get(key))


def _describe_unless(default: str | None) -> Callable[[object], str]:
    """Return a function that describes a value in a label, and the default by an empty text."""
    return lambda value: "" if value in (None, default) else str(value)


# The key that distinguishes the variants of a strategy, and the function that describes its value in a label.
VARIANTS: dict[str, tuple[str, Callable[[object], str]]] = {
    "dp": ("strategy.loss", _describe_unless("gathered")),
    "ddp": ("strategy.comm_hook", _describe_unless("none")),
    "allreduce": ("strategy.algorithm", _describe_unless(None)),
    "fsdp": ("strategy.param_dtype", _describe_unless(None)),
    "parameter_server": ("strategy.max_staleness", lambda bound: "synchronous" if bound == 0 else ""),
}


def load_run(path: Path) -> Run:
    """Read one run directory. Raise UserError that names the missing or malformed file, and the line."""
    check_run_files(path)
    notes: list[str] = []
    summary = read_summary(find_summary_file(path))
    update_metrics = UPDATE_METRICS if summary["strategy"] == "parameter_server" else ()  # moved to Run.updates below
    optional = (*OPTIONAL_METRICS, *update_metrics)
    steps, metrics, repeated_steps = read_columns(path / "metrics.jsonl", STEP_METRICS, notes, optional)
    evals_file, traffic_file = path / "evals.jsonl", path / "traffic.jsonl"
    eval_steps = np.array([], int)
    evals = {name: np.array([]) for name in (*EVALUATION_METRICS, *OPTIONAL_EVALUATION_METRICS)}
    evaluated: tuple[str, ...] = ()
    if evals_file.is_file():
        evaluated = find_metrics(evals_file)
        names = tuple(dict.fromkeys((*evaluated, *OPTIONAL_EVALUATION_METRICS)))
        eval_steps, evals, _ = read_columns(evals_file, EVALUATION_METRICS, notes, names)
    if gaps := find_gaps(steps):
        first, last = gaps[0]
        others = f", and {len(gaps) - 1} more gaps" if len(gaps) > 1 else ""
        notes.append(f"{path}: metrics.jsonl has no rows of steps {first} to {last}{others}; they are not compared")
    config = read_flat_values(path / CONFIG)
    run = Run(
        path=path,
        config=config,
        summary=summary,
        steps=steps,
        metrics=metrics,
        eval_steps=eval_steps,
        evals=evals,
        repeated_steps=repeated_steps,
        recorded_evaluations=frozenset({*evaluated, "loss"} if len(eval_steps) else ()),
        updates={name: metrics.pop(name) for name in update_metrics},
        profile=read_profile(path, str(summary["framework"]), notes),
        notes=notes,
        epoch_ends=_find_epoch_ends(config),
    )
    if traffic_file.is_file():
        last_change = run.replica_changes[-1][0] if run.replica_changes else 0
        run.bytes_by_kind = read_traffic(traffic_file, run.replicas, last_change, notes)
    return run


def load_runs(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Read run directories. Return the runs that can be read, and an error message for each of the others."""
    runs: list[Run] = []
    errors = []
    for path in paths:
        try:
            runs.append(load_run(path))
        except UserError as error:
            errors.append(str(error))
        else:
            _share_columns(runs)
    return runs, errors


def _find_epoch_ends(config: Mapping[str, Value]) -> list[int] | None:
    """Return the last step of each epoch of a run that was trained for a number of epochs; None for other runs."""
    epochs, steps = config.get("train.epochs"), config.get("train.steps")
    if not isinstance(epochs, int) or not isinstance(steps, int) or config.get("train.virtual_epoch_examples"):
        return None
    length = steps // epochs
    return [*range(length, steps + 1, length)] if length * epochs == steps else None


def list_evaluated_metrics(runs: Iterable[Run]) -> list[str]:
    """Return the metrics that an evaluation of one of the runs recorded, besides the loss, such as accuracy and f1."""
    names = dict.fromkeys(name for run in runs for name in run.evals if run.has_evaluation(name))
    return [name for name in names if name not in (*EVALUATION_METRICS, "duration")]


def find_gaps(steps: np.ndarray) -> list[tuple[int, int]]:
    """Return (first, last) missing step of each gap. steps: sorted, int64 [n]; a start after 1 is a gap too."""
    before = np.concatenate(([0], steps))
    return [(int(before[i]) + 1, int(before[i + 1]) - 1) for i in np.flatnonzero(np.diff(before) > 1)]


def _share_columns(runs: list[Run]) -> None:
    """Save memory: let the last run use the arrays of an earlier run if they are equal, as the examples often are."""
    *earlier, last = runs
    for run in earlier:
        if np.array_equal(run.steps, last.steps):
            last.steps = run.steps
            for name, column in run.metrics.items():
                if np.array_equal(column, last.metrics[name], equal_nan=True):
                    last.metrics[name] = column
