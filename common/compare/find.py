"""Search for run directories: the newest run of each kind, or all runs below a directory.

The kind of a run is its framework, its strategy, the variant of the strategy (such as the algorithm of `allreduce`) and
its number of replicas.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from common.compare.run_files import check_run_files, path_exists
from common.compare.runs import describe_variant
from common.config.saved_config import CONFIG, read_flat_values
from common.config.strategies import TITLES, list_strategies
from common.errors import UserError
from common.records.summary import SUMMARY_FILE, find_summary_file, read_summary

WRITTEN_BY_RUNS = ("metrics.jsonl", SUMMARY_FILE)  # a directory with one of these files is a run
RunKind = tuple[str, str, str, int]  # framework, strategy, variant, replicas


@dataclass(frozen=True)
class RunEntry:
    """A run directory whose metrics have not been read."""

    path: Path
    kind: RunKind
    started: str  # ISO 8601, from summary.json; empty if unknown

    def get_rank(self) -> tuple[int, int, RunKind, str, Path]:
        """Return the sort key: framework and strategy in the order of the config's lists, then the kind, the start."""
        framework, strategy, *_ = self.kind
        return (
            _find_position(framework, list(TITLES)),
            _find_position(strategy, list_strategies()),
            self.kind,
            self.started,
            self.path,
        )


def find_newest_runs(root: Path) -> tuple[list[Path], list[str], list[str]]:
    """Find the newest run of each kind below `root`. The newest run has the latest `started` in summary.json.

    Returns:
        The sorted run directories, the reasons why other runs cannot be read, and notes for the reader of a report.

    Raises:
        UserError: There is no run.
    """
    entries, errors = _read_entries(list_run_dirs(root))
    if not entries and not errors:
        problem = f"runs={root}: " + (
            "a file, not a directory of runs" if path_exists(root) and root.is_file() else "no runs found"
        )
        raise UserError(
            f"{problem}; make some with `python -m torch_impl.train strategy=ddp` and "
            "`python -m tf_impl.train strategy=mirrored`, or name run directories"
        )
    newest = {entry.kind: entry for entry in sorted(entries, key=lambda entry: (entry.started, entry.path))}
    notes = []
    if older := len(entries) - len(newest):
        command = f"`python -m common.compare {root}` compares all"
        notes.append(f"older runs of the same kinds are left out ({older}); {command}")
    return [entry.path for entry in sorted(newest.values(), key=RunEntry.get_rank)], errors, notes


def find_named_runs(paths: Iterable[Path]) -> tuple[list[Path], list[str]]:
    """Find the runs at `paths`. If a directory is not itself a run, find all runs below it, sorted.

    Returns:
        The run directories, and the reasons why some runs below a directory cannot be read. A path that is itself a run
        is returned unread.

    Raises:
        UserError: Nothing exists at a path.
    """
    runs: list[Path] = []
    errors: list[str] = []
    for path in paths:
        if not path_exists(path):
            raise UserError(f"{path}: no such run directory")
        run_dirs = [] if _is_run(path) else list_run_dirs(path)
        entries, unreadable = _read_entries(run_dirs)
        runs += [entry.path for entry in sorted(entries, key=RunEntry.get_rank)] if run_dirs else [path]
        errors += unreadable
    return runs, errors


def list_run_dirs(root: Path) -> list[Path]:
    """Return all run directories at or below a directory, sorted."""
    directories = sorted(directory for directory, _, _ in os.walk(root))
    return [path for path in map(Path, directories) if _is_run(path)]


def _is_run(path: Path) -> bool:
    return any((path / name).is_file() for name in WRITTEN_BY_RUNS)


def _read_entries(paths: Iterable[Path]) -> tuple[list[RunEntry], list[str]]:
    """Read the summary and the config of each run. Return the runs, and the reasons why others cannot be read."""
    entries, errors = [], []
    for path in paths:
        try:
            check_run_files(path)
            summary, config = read_summary(find_summary_file(path)), read_flat_values(path / CONFIG)
        except UserError as error:
            errors.append(str(error))
            continue
        framework, strategy = str(summary["framework"]), str(summary["strategy"])
        kind = framework, strategy, describe_variant(strategy, config), summary["replicas"] or 0
        entries.append(RunEntry(path, kind, str(summary.get("started") or "")))
    return entries, errors


def _find_position(name: str, names: Sequence[str]) -> int:
    """Return the index of a name; unknown names come last."""
    return names.index(name) if name in names else len(names)
