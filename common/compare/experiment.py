"""Whether two runs are the same experiment: what may differ between them, and what explains that their curves do."""

from typing import Any

import numpy as np

from common.compare.runs import Run

ABSENT = "(absent)"

# Config keys (with all keys below them) that must not change a curve.
IGNORED_KEYS = (
    "strategy",
    "cluster",
    "run_dir",
    "run_name",
    "cache_dir",
    "resume",
    "train.log_every",
    "train.eval_every",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "train.virtual_epoch_examples",
    "train.early_stopping",
    "train.max_restarts",
    "train.warmup_steps_untimed",
)
# Keys that say where something came from: they do not count where both runs have its content, by fingerprint.
ORIGIN_KEYS = {
    "data": "token_cache",
    "model.name": "initial_weights",
    "model.checkpoint": "initial_weights",
    "model.revision": "initial_weights",
}
# The length of a run shows in its steps; it changes the curve only where the schedule depends on it.
LENGTH_KEYS = ("train.steps", "train.epochs")


def config_differences(a: Run, b: Run) -> dict[str, tuple[Any, Any]]:
    """All keys whose values differ, sorted: {key: (value of a, value of b)}."""
    keys = sorted(a.config.keys() | b.config.keys())
    values = {key: (a.config.get(key, ABSENT), b.config.get(key, ABSENT)) for key in keys}
    return {key: (x, y) for key, (x, y) in values.items() if x != y}


def may_change_curve(key: str, a: Run, b: Run) -> bool:
    """Whether a difference in this key makes the runs different experiments: see IGNORED_KEYS and what follows it."""

    def below(parent: str) -> bool:
        return key == parent or key.startswith(parent + ".")

    if any(below(parent) for parent in IGNORED_KEYS):
        return False
    for parent, name in ORIGIN_KEYS.items():
        if below(parent) and a.fingerprint(name) is not None and a.fingerprint(name) == b.fingerprint(name):
            return False
    constant = all(run.config.get("schedule.name") == "constant" for run in (a, b))
    if key in LENGTH_KEYS:
        return not constant and any(run.config.get("schedule.total_steps") is None for run in (a, b))
    return key != "schedule.total_steps" or not constant


def reasons_against(a: Run, b: Run, changed: dict[str, tuple[Any, Any]]) -> list[str]:
    """Why the runs are different experiments; `changed` are the config differences that may change a curve."""
    reasons = []
    if changed:
        listed = ", ".join(f"{key} ({x} | {y})" for key, (x, y) in changed.items())
        reasons.append(f"different configs: {listed}")
    for name, words in (("token_cache", "token caches"), ("initial_weights", "initial weights")):
        if a.fingerprint(name) != b.fingerprint(name):
            reasons.append(f"different {words} ({a.fingerprint(name)} | {b.fingerprint(name)})")
    return reasons


def step_reasons_against(a: Run, b: Run) -> list[str]:
    """Why the runs are not comparable at every step: steps that only one of them has, or has twice."""
    reasons = []
    for run in (a, b):
        if run.doubled:
            reasons.append(f"{run} has more than one row for {_span(run.doubled)}; the last one is compared")
    common = len(np.intersect1d(a.steps, b.steps, assume_unique=True))
    if not common:
        reasons.append("no common steps")
    elif common < max(len(a.steps), len(b.steps)):
        only = [
            f"{run} alone has {_span(np.setdiff1d(run.steps, other.steps).tolist())}"
            for run, other in ((a, b), (b, a))
            if len(np.setdiff1d(run.steps, other.steps))
        ]
        reasons.append(f"different steps: {', '.join(only)}; compared at the {common} common steps")
    return reasons


def explanations(a: Run, b: Run) -> list[str]:
    """What explains a divergence: other batches, another learning rate, dropout."""
    notes = []
    steps, i, j = np.intersect1d(a.steps, b.steps, assume_unique=True, return_indices=True)
    for name, words in (
        ("examples", "the runs consumed different batches"),
        ("tokens", "the runs consumed different batches"),
        ("learning_rate", "the runs follow different schedules"),
    ):
        differ = steps[~np.isclose(a.metrics[name][i], b.metrics[name][j], rtol=1e-9, atol=0, equal_nan=True)]
        if len(differ):
            notes.append(f"{name} differs from step {differ[0]}: {words}")
    dropout = [run.config.get("model.dropout") for run in (a, b)]
    if all(isinstance(rate, float) and rate > 0 for rate in dropout) and a.label != b.label:
        notes.append("model.dropout > 0: every replica draws its own masks, so the curves cannot agree step by step")
    return notes


def _span(steps: list[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]}"
    contiguous = steps[-1] - steps[0] + 1 == len(steps)
    return (
        f"steps {steps[0]} to {steps[-1]}" if contiguous else f"{len(steps)} steps between {steps[0]} and {steps[-1]}"
    )
