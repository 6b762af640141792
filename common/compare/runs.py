"""Runs read back from their directories, at full precision and with every malformed line named."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from common.errors import UserError

REQUIRED_FILES = ("config.yaml", "metrics.jsonl", "summary.json")
METRICS = ("loss", "grad_norm", "learning_rate", "examples", "tokens")
EVALS = ("loss", "accuracy")


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
    doubled: list[int]  # steps with more than one row; the last row counts
    notes: list[str] = field(default_factory=list)
    label: str = ""

    def __post_init__(self) -> None:
        replicas = f" x{self.replicas}" if self.replicas > 1 else ""
        self.label = self.label or f"{self.framework} {self.strategy}{replicas}"

    def __str__(self) -> str:
        return self.label

    @property
    def framework(self) -> str:
        return str(self.summary["framework"])

    @property
    def strategy(self) -> str:
        return str(self.summary["strategy"])

    @property
    def replicas(self) -> int:
        return int(self.summary["replicas"])

    @property
    def precision(self) -> str:
        return str(self.config.get("train.precision", "float32"))

    def fingerprint(self, name: str) -> str | None:
        """`name`: token_cache or initial_weights. None when the run did not record it."""
        fingerprints = self.summary.get("fingerprints")
        return fingerprints.get(name) if isinstance(fingerprints, dict) else None


def load_run(path: Path) -> Run:
    """Read one run directory. Raises UserError that names the file (and line) that is missing or malformed."""
    if not path.is_dir():
        raise UserError(f"{path}: no such run directory")
    for name in REQUIRED_FILES:
        if not (path / name).is_file():
            hint = " (still running, or killed before it could write one)" if name == "summary.json" else ""
            raise UserError(f"{path}: not a run directory: {name} is missing{hint}")
    notes: list[str] = []
    steps, metrics, doubled = _columns(path / "metrics.jsonl", METRICS, notes)
    evals_file = path / "evals.jsonl"
    eval_steps, evals, _ = _columns(evals_file, EVALS, notes) if evals_file.is_file() else (np.array([], int), {}, [])
    return Run(
        path=path,
        config=_config(path / "config.yaml"),
        summary=read_summary(path / "summary.json"),
        steps=steps,
        metrics=metrics,
        eval_steps=eval_steps,
        evals=evals or {name: np.array([]) for name in EVALS},
        doubled=doubled,
        notes=notes,
    )


def distinguish(runs: Iterable[Run]) -> None:
    """Make labels unique: to those of one framework, strategy and replicas, add the directory's name, or its path."""
    for describe in (lambda run: run.path.name, lambda run: str(run.path)):
        by_label: dict[str, list[Run]] = {}
        for run in runs:
            by_label.setdefault(run.label, []).append(run)
        for same in by_label.values():
            if len(same) > 1:
                for run in same:
                    run.label = f"{run.label} ({describe(run)})"


def read_summary(file: Path) -> dict[str, Any]:
    """summary.json, with the fields that a comparison computes with checked for their types."""
    try:
        summary = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(summary, dict):
        raise UserError(f"{file}: not a JSON object")
    for key in ("framework", "strategy", "status"):
        if not isinstance(summary.get(key), str):
            raise UserError(f"{file}: '{key}' must be a string, found {summary.get(key)!r}")
    if not isinstance(summary.get("replicas"), int):
        raise UserError(f"{file}: 'replicas' must be a whole number, found {summary.get('replicas')!r}")
    for key in ("final_loss", "accuracy", "examples_per_second", "tokens_per_second"):
        if not _is_number(summary.get(key, 0), null=True):
            raise UserError(f"{file}: '{key}' must be a number or null, found {summary[key]!r}")
    memory = summary.get("peak_memory_bytes") or []
    if not isinstance(memory, list) or not all(_is_number(value, null=True) for value in memory):
        raise UserError(f"{file}: 'peak_memory_bytes' must be a list of numbers, found {memory!r}")
    return summary


def _config(file: Path) -> dict[str, Any]:
    try:
        nested = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except Exception as error:  # OmegaConf passes on YAML's, the decoder's and its own exceptions
        raise UserError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(nested, dict):
        raise UserError(f"{file}: not a mapping of keys to values")
    return _flatten(nested)


def _flatten(nested: dict[Any, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _columns(
    file: Path, names: tuple[str, ...], notes: list[str]
) -> tuple[np.ndarray, dict[str, np.ndarray], list[int]]:
    """Rows of a .jsonl file as sorted steps, one array per name, and the steps that occur more than once."""
    rows: dict[int, list[float]] = {}
    doubled: set[int] = set()
    lines = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                notes.append(f"{file}:{number}: incomplete last line left out")
                break
            raise UserError(f"{file}:{number}: not a valid JSON row: {error}") from error
        step = row.get("step") if isinstance(row, dict) else None
        if not isinstance(step, int) or not 0 <= step < 2**53:
            raise UserError(f"{file}:{number}: a row must be a JSON object with a whole number 'step', found {step!r}")
        for name in names:
            if name not in row or not _is_number(row[name], null=True):
                raise UserError(f"{file}:{number}: '{name}' must be a number, found {row.get(name, 'nothing')!r}")
        if step in rows:
            doubled.add(step)
        rows[step] = [math.nan if row[name] is None else float(row[name]) for name in names]
    steps = np.array(sorted(rows), dtype=np.int64)
    table = np.array([rows[step] for step in steps.tolist()], dtype=np.float64).reshape(len(steps), len(names))
    return steps, {name: table[:, i] for i, name in enumerate(names)}, sorted(doubled)


def _is_number(value: Any, null: bool = False) -> bool:
    if value is None:
        return null
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**1000)
