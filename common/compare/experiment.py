"""Whether two runs are the same experiment: which differences are allowed, and what explains diverging curves."""

from typing import Any

import numpy as np

from common.compare.runs import Run
from common.compare.steps import common_steps
from common.config.keys import Scope
from common.config.schema import GROUPS, collect_keys

ABSENT = "(absent)"

# The fingerprint of what the SOURCE keys of a group name.
FINGERPRINTS = {"data": "token_cache", "model": "initial_weights"}
# The length of a run shows in its steps; it changes the curve only where the schedule depends on it.
LENGTH_KEYS = ("train.steps", "train.epochs")


def config_differences(a: Run, b: Run) -> dict[str, tuple[Any, Any]]:
    """All keys whose values differ, sorted: {key: (value of a, value of b)}."""
    keys = sorted(a.config.keys() | b.config.keys())
    values = {key: (a.config.get(key, ABSENT), b.config.get(key, ABSENT)) for key in keys}
    return {key: (x, y) for key, (x, y) in values.items() if x != y}


def curve_differences(a: Run, b: Run) -> dict[str, tuple[Any, Any]]:
    """The config differences that may change the curve, and so make the runs different experiments.

    The scope of each key decides; see common.config.keys.Scope. An unknown key of a known kind counts as CURVE, one of
    a kind that an extension has added as the `kind` of its group does.
    """
    table = collect_keys()
    return {
        name: values
        for name, values in config_differences(a, b).items()
        if _may_change_curve(name, table[name].scope if name in table else _unknown_scope(name, a, b), a, b)
    }


def _unknown_scope(name: str, a: Run, b: Run) -> Scope:
    group = name.partition(".")[0]
    kinds = {run.config.get(f"{group}.kind") for run in (a, b)} - {None}
    return collect_keys()[f"{group}.kind"].scope if kinds - {*GROUPS.get(group, kinds)} else Scope.CURVE


def _may_change_curve(name: str, scope: Scope, a: Run, b: Run) -> bool:
    constant = all(run.config.get("schedule.kind") == "constant" for run in (a, b))
    if name in LENGTH_KEYS:
        return not constant and any(run.config.get("schedule.total_steps") is None for run in (a, b))
    if name == "schedule.total_steps":
        return not constant
    if scope is Scope.SOURCE:
        return not _same_content(name.partition(".")[0], a, b)
    return scope is Scope.CURVE


def _same_content(group: str, a: Run, b: Run) -> bool:
    """Whether both runs recorded the same fingerprint of what a group's keys name."""
    fingerprints = [run.fingerprint(FINGERPRINTS[group]) if group in FINGERPRINTS else None for run in (a, b)]
    return fingerprints[0] is not None and fingerprints[0] == fingerprints[1]


def experiment_mismatches(a: Run, b: Run, changed: dict[str, tuple[Any, Any]]) -> list[str]:
    """Why the runs are different experiments, if they are; `changed`: their curve_differences."""
    reasons = []
    if changed:
        listed = ", ".join(f"{key} ({x} | {y})" for key, (x, y) in changed.items())
        reasons.append(f"different configs: {listed}")
    for name, plural in (("token_cache", "token caches"), ("initial_weights", "initial weights")):
        if a.fingerprint(name) != b.fingerprint(name):
            reasons.append(f"different {plural} ({a.fingerprint(name)} | {b.fingerprint(name)})")
    if a.plan_version != b.plan_version:
        reasons.append(f"different batch plans (version {a.plan_version} | version {b.plan_version})")
    return reasons


def step_mismatches(a: Run, b: Run) -> list[str]:
    """Why the runs cannot be compared at every step, if so: steps that only one of them has, or has twice."""
    reasons = []
    for run in (a, b):
        if run.repeated_steps:
            reasons.append(f"{run} has more than one row for {_span(run.repeated_steps)}; the last one is compared")
    if a.unit != b.unit:
        return [f"no common steps: rows of {a} are {a.unit}s, those of {b} {b.unit}s"]
    common = len(common_steps(a, b)[0])
    if not common:
        spans = [f"{run} has {_span(run.steps.tolist()) if len(run.steps) else 'none'}" for run in (a, b)]
        reasons.append(f"no common steps: {', '.join(spans)}")
    elif common < max(len(a.steps), len(b.steps)):
        missing = [(run, _missing(run, other)) for run, other in ((a, b), (b, a))]
        if only := [f"only {run} has {_span(steps.tolist())}" for run, steps in missing if len(steps)]:
            reasons.append(f"different steps: {', '.join(only)}; compared at the {common} common steps")
    return reasons


def _missing(run: Run, other: Run) -> np.ndarray:
    """The steps of a run that the other one lacks; one that is running may still come to them."""
    steps = np.setdiff1d(run.steps, other.steps)
    return steps[steps <= other.steps[-1]] if other.running else steps


def explanations(a: Run, b: Run) -> list[str]:
    """What explains diverging curves: different batches, a different learning rate, BatchNorm, dropout."""
    notes = []
    steps, i, j = common_steps(a, b)
    for name, explanation in (
        ("examples", "the runs consumed different batches"),
        ("tokens", "the runs consumed different batches"),
        ("learning_rate", "the runs follow different schedules"),
    ):
        if a.metrics[name] is b.metrics[name] or not (a.has(name) and b.has(name)):
            continue
        differ = steps[~np.isclose(a.metrics[name][i], b.metrics[name][j], rtol=1e-9, atol=0, equal_nan=True)]
        if len(differ):
            notes.append(f"{name} differs from step {differ[0]}: {explanation}")
    replicas = [run.replica_changes or run.replicas for run in (a, b)]
    if all(run.summary.get("batch_norm") == "replica" for run in (a, b)) and replicas[0] != replicas[1]:
        notes.append(
            "BatchNorm has the statistics of each replica's shard, so the curve depends on the number of replicas "
            f"({a.replicas} | {b.replicas}); with model.sync_batch_norm=true it has those of the global batch"
        )
    if all(_draws_its_masks(run) for run in (a, b)) and a.label != b.label:
        notes.append(
            "model.dropout_semantics=native: every replica draws its own dropout masks, so the curves cannot agree at "
            "every step"
        )
    return notes


def _draws_its_masks(run: Run) -> bool:
    rate = run.config.get("model.dropout")
    return isinstance(rate, float) and rate > 0 and run.config.get("model.dropout_semantics") != "aligned"


def _span(steps: list[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]}"
    contiguous = steps[-1] - steps[0] + 1 == len(steps)
    return (
        f"steps {steps[0]} to {steps[-1]}" if contiguous else f"{len(steps)} steps between {steps[0]} and {steps[-1]}"
    )
