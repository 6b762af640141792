"""Groups of runs that differ only in their seed."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from common.compare.labels import build_unique_labels
from common.compare.runs import Run
from common.config.keys import Scope
from common.config.schema import collect_keys
from common.errors import UserError

SEED = "train.seed"
DIVERGED_ERROR = ": the loss is "  # part of NonFiniteLossError's text, which summary.json has as its error


@dataclass(frozen=True, eq=False)
class SeedGroup:
    """Runs that differ only in their seed, sorted by the seed."""

    label: str  # unique
    runs: list[Run]
    seeds: list[int] | None  # the seed of each run; None for external runs, whose seeds are unknown

    def __str__(self) -> str:
        return self.label

    def name_run(self, position: int) -> str:
        """Return "seed 3" for a sentence; the file name for an external run."""
        return f"seed {self.seeds[position]}" if self.seeds else self.runs[position].path.name


def group_runs(runs: Sequence[Run]) -> list[SeedGroup]:
    """Divide runs into groups by everything but the seed, in the order of their first runs.

    Runs that repeat the seeds of others with the same config are divided by their versions, then by their directories.
    External runs are divided by their names.

    Raises:
        UserError: A group has a single run, a seed is repeated, or a run has not ended, or failed without diverging.
    """
    for run in runs:
        _check_end(run)
    lockstep_runs = [run for run in runs if not run.external_kind]
    groups = _divide([lockstep_runs] if lockstep_runs else [], _describe_config)
    for describe in (_describe_versions, _describe_directory):  # divide further only if a seed is repeated
        groups = [
            subgroup
            for group in groups
            for subgroup in ([group] if not _find_repeated(group) else _divide([group], describe))
        ]
    for group in groups:
        if repeated := _find_repeated(group):
            first, second = repeated[:2]
            raise UserError(
                f"{first.path} and {second.path}: both have {SEED}={_get_seed(first)} and the same config; name one of "
                "them, or put the runs of each group into a directory of its own"
            )
    groups = [sorted(group, key=_get_seed) for group in groups]
    labels = _build_labels(groups)
    seed_groups = [
        SeedGroup(label, group, [_get_seed(run) for run in group]) for label, group in zip(labels, groups, strict=True)
    ]
    external = _divide([[run for run in runs if run.external_kind]], lambda run: run.label)
    seed_groups += [SeedGroup(group[0].label, sorted(group, key=_split_numbers), None) for group in external]
    for seed_group in seed_groups:
        if len(seed_group.runs) < 2:
            path = seed_group.runs[0].path
            raise UserError(f"{seed_group}: only one run, {path}; a group needs runs of two seeds or more")
    return sorted(seed_groups, key=lambda group: min(map(runs.index, group.runs)))


def find_divergence(run: Run) -> str:
    """Return a text with the first step at which the loss of a run was not finite; empty if all losses are finite."""
    bad_rows = np.flatnonzero(~np.isfinite(run.metrics["loss"]))
    if len(bad_rows):
        return f"its loss is not finite at {run.unit} {run.steps[bad_rows[0]]}"
    error = str(run.summary.get("error", ""))
    return error.partition(";")[0] if run.summary["status"] == "failed" and DIVERGED_ERROR in error else ""


def _check_end(run: Run) -> None:
    """Raise UserError if a run has not ended, or has ended for a reason that says nothing about its training."""
    status = run.summary["status"]
    if status not in ("completed", "unknown") and not find_divergence(run):
        reason = f": {run.summary['error']}" if "error" in run.summary else ""
        raise UserError(
            f"{run.path}: status {status}{reason}; let it end with resume=auto, or remove its seed from all groups"
        )
    if not len(run.steps):
        raise UserError(f"{run.path}: it recorded no training loss; evaluations alone cannot be compared by seeds")


def _divide(groups: Iterable[list[Run]], describe: Callable[[Run], str]) -> list[list[Run]]:
    """Divide each group by the descriptions of its runs, in the order of their first runs."""
    subgroups: list[list[Run]] = []
    for group in groups:
        by_description: dict[str, list[Run]] = {}
        for run in group:
            by_description.setdefault(describe(run), []).append(run)
        subgroups += by_description.values()
    return subgroups


def _describe_config(run: Run) -> str:
    keys = collect_keys()
    values = {
        name: value
        for name, value in run.config.items()
        if name != SEED and (name not in keys or keys[name].scope is not Scope.HOST)
    }
    data = run.get_fingerprint("token_cache")
    return json.dumps([run.framework, run.strategy, run.replicas, data, values], sort_keys=True, default=str)


def _describe_versions(run: Run) -> str:
    return json.dumps(run.summary.get("versions"), sort_keys=True)


def _describe_directory(run: Run) -> str:
    return str(run.path.resolve().parent)


def _get_parent_name(run: Run) -> str:
    return run.path.resolve().parent.name


def _find_repeated(group: Sequence[Run]) -> list[Run]:
    """Return the runs with the first seed that several runs of a group share; none if no seed is repeated."""
    for _, same_seed in groupby(sorted(group, key=_get_seed), key=_get_seed):
        if len(repeated := [*same_seed]) > 1:
            return repeated
    return []


def _split_numbers(run: Run) -> list[str | int]:
    """Return the parts of a path, with its digits as numbers, so that seed-2 comes before seed-10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", str(run.path))]


def _get_seed(run: Run) -> int:
    seed = run.config.get(SEED)
    if not isinstance(seed, int):
        raise UserError(f"{run.path}: its config has no {SEED}; remove this run from the command")
    return seed


def _build_labels(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Return unique labels of groups: the values that differ, else the directories, else the paths of the runs."""
    first_runs = [group[0] for group in groups]
    labels = build_unique_labels(first_runs, with_paths=False)
    for describe in (_get_parent_name, _describe_directory, lambda run: str(run.path)):
        labels = [
            label if labels.count(label) == 1 else f"{run.label} ({describe(run)})"
            for label, run in zip(labels, first_runs, strict=True)
        ]
    return labels
