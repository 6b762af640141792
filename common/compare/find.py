"""Finds runs: the newest of each kind where none is named, and all that are below a named directory."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.compare.read import read_config, read_summary
from common.compare.runs import check_files, summary_file, variant
from common.config.strategies import TITLES, list_strategies
from common.errors import UserError

WRITTEN_BY_RUNS = ("metrics.jsonl", "summary.json")  # where one of them is, there is a run
Kind = tuple[str, str, str, int]  # framework, strategy, variant, replicas


@dataclass(frozen=True)
class Found:
    """A run directory, before its metrics are read."""

    path: Path
    kind: Kind
    started: str

    def order(self) -> tuple[Any, ...]:
        """Frameworks and strategies as common.config.strategies lists them, unknown ones last; then kind and start."""
        framework, strategy, *_ = self.kind
        places = _position(framework, list(TITLES)), _position(strategy, list_strategies())
        return *places, self.kind, self.started, self.path


def newest_runs(root: Path) -> tuple[list[Path], list[str], list[str]]:
    """The newest run of each framework, strategy, variant and number of replicas under `root`, ordered.

    Also why others cannot be read, and notes. The newest has the latest `started` in summary.json. Raises UserError
    where there is no run.
    """
    found, errors = _look(_run_dirs(root))
    if not found and not errors:
        where = f"runs={root}: " + ("a file, not a directory of runs" if os.path.isfile(root) else "no runs found")
        raise UserError(
            f"{where}; make some with `python -m torch_impl.train strategy=ddp` and "
            "`python -m tf_impl.train strategy=mirrored`, or name run directories"
        )
    newest = {each.kind: each for each in sorted(found, key=lambda each: (each.started, each.path))}
    notes = []
    if older := len(found) - len(newest):
        notes.append(f"{older} older of the same kinds left out; `python -m common.compare {root}` compares all")
    return [each.path for each in sorted(newest.values(), key=Found.order)], errors, notes


def named_runs(paths: Iterable[Path]) -> tuple[list[Path], list[str]]:
    """The runs at `paths`; a directory that is not itself a run stands for all below it, ordered.

    Also why some of those below it cannot be read. Raises UserError where there is nothing at a path.
    """
    runs, errors = [], []
    for path in paths:
        if not os.path.exists(path):
            raise UserError(f"{path}: no such run directory")
        below = [] if _is_run(path) else _run_dirs(path)
        found, damaged = _look(below)
        runs += [each.path for each in sorted(found, key=Found.order)] if below else [path]
        errors += damaged
    return runs, errors


def _run_dirs(root: Path) -> list[Path]:
    return [path for path in map(Path, sorted(directory for directory, _, _ in os.walk(root))) if _is_run(path)]


def _is_run(path: Path) -> bool:
    return any(os.path.isfile(path / name) for name in WRITTEN_BY_RUNS)


def _look(paths: Iterable[Path]) -> tuple[list[Found], list[str]]:
    found, errors = [], []
    for path in paths:
        try:
            check_files(path)
            summary, config = read_summary(summary_file(path)), read_config(path / "config.yaml")
        except UserError as error:
            errors.append(str(error))
            continue
        strategy = summary["strategy"]
        kind = summary["framework"], strategy, variant(strategy, config), summary["replicas"]
        found.append(Found(path, kind, str(summary.get("started") or "")))
    return found, errors


def _position(name: str, names: Sequence[str]) -> int:
    return names.index(name) if name in names else len(names)
