"""Rules that decide whether two runs, `a` and `b`, are the same experiment, and explanations of diverging curves.

The scope of a config key says what must agree. CURVE: the values. SOURCE, for keys that name data or weights: the
fingerprints, which are hashes of the content. RUN and HOST: nothing. The group of a key is its first part: `optimizer`
in `optimizer.learning_rate`. The key `optimizer.kind` chooses which other keys the group has.
"""

from collections.abc import Mapping

import numpy as np

from common.compare.matched_steps import find_common_steps
from common.compare.runs import Run
from common.config.keys import Scope
from common.config.schedules import SCHEDULES, ScheduleSettings
from common.config.schema import GROUPS, collect_keys
from common.recording.environment import THREAD_FLAGS, list_differences, read_environment

ABSENT = "(absent)"
# For each group with SOURCE keys, the fingerprint of the content that they name.
FINGERPRINTS = {"data": "token_cache", "model": "initial_weights"}
# The length of a run changes its curve only if the learning rate is scheduled over that length.
LENGTH_KEYS = ("train.steps", "train.epochs")

ConfigDifferences = dict[str, tuple[object, object]]  # the values of `a` and `b` for each key that differs


def describe_environments(a: Run, b: Run, has_equal_curves: bool | None) -> str:
    """Describe the differences between the environments of two runs of one framework, and their effect, or return "".

    Args:
        a: A run.
        b: A run.
        has_equal_curves: Whether the curves agree within the tolerance; None if the curves were not compared, or if
            something else explains their difference.
    """
    if a.external_kind or b.external_kind or a.framework != b.framework:
        return ""
    environments = read_environment(a.summary), read_environment(b.summary)
    has_same_replicas = (a.strategy, a.replicas) == (b.strategy, b.replicas)
    differences = list_differences(*environments, True, () if has_same_replicas else THREAD_FLAGS)
    if not differences:
        return ""
    listed = ", ".join(f"{difference.name} ({difference.a} | {difference.b})" for difference in differences)
    effects = {None: "", True: "; nothing exceeds the tolerance", False: "; common.diagnose says what they change"}
    return f"the environments differ in {listed}{effects[has_equal_curves]}"


def find_config_differences(a: Run, b: Run) -> ConfigDifferences:
    """Return all keys whose values differ, sorted, with the values of both runs."""
    keys = sorted(a.config.keys() | b.config.keys())
    values = {key: (a.config.get(key, ABSENT), b.config.get(key, ABSENT)) for key in keys}
    return {key: (value_a, value_b) for key, (value_a, value_b) in values.items() if value_a != value_b}


def find_curve_differences(a: Run, b: Run) -> ConfigDifferences:
    """Return the config differences that may change the curve, and so make the runs different experiments.

    The scope of each key decides. A key that this version of Lockstep does not know has the scope CURVE. If the value
    of `kind` in its group is not Lockstep's, the key belongs to a user's extension. It then has the scope of `kind`.
    """
    keys = collect_keys()
    return {
        name: values
        for name, values in find_config_differences(a, b).items()
        if _may_change_curve(name, keys[name].scope if name in keys else _get_unknown_scope(name, a, b), a, b)
    }


def _get_unknown_scope(name: str, a: Run, b: Run) -> Scope:
    """Return the scope of a key that this version of Lockstep does not know."""
    group = name.partition(".")[0]
    kinds = {run.config.get(f"{group}.kind") for run in (a, b)} - {None}
    has_extension = bool(kinds - set(GROUPS.get(group, kinds)))  # GROUPS has the known kinds of each group
    return collect_keys()[f"{group}.kind"].scope if has_extension else Scope.CURVE


def _may_change_curve(name: str, scope: Scope, a: Run, b: Run) -> bool:
    """Check whether different values of a key may give different curves."""
    schedules = [SCHEDULES.get(str(run.config.get("schedule.kind")), ScheduleSettings) for run in (a, b)]
    uses_total_steps = any(schedule.uses_total_steps for schedule in schedules)
    if name in LENGTH_KEYS:
        return uses_total_steps and any(run.config.get("schedule.total_steps") is None for run in (a, b))
    if name == "schedule.total_steps":
        return uses_total_steps
    if scope is Scope.SOURCE:
        return not _has_same_content(name.partition(".")[0], a, b)
    return scope is Scope.CURVE


def _has_same_content(group: str, a: Run, b: Run) -> bool:
    """Check whether both runs recorded the same fingerprint of the content that a group's keys name."""
    fingerprints = [run.get_fingerprint(FINGERPRINTS[group]) if group in FINGERPRINTS else None for run in (a, b)]
    return fingerprints[0] is not None and fingerprints[0] == fingerprints[1]


def find_experiment_mismatches(a: Run, b: Run, curve_differences: ConfigDifferences) -> list[str]:
    """Return the reasons why the runs are different experiments; none if they are the same experiment.

    Args:
        a: One run.
        b: The other run.
        curve_differences: The result of `find_curve_differences(a, b)`.
    """
    reasons = []
    if curve_differences:
        changes = ", ".join(f"{key} ({value_a} | {value_b})" for key, (value_a, value_b) in curve_differences.items())
        reasons.append(f"different configs: {changes}")
    for name, plural in (("token_cache", "token caches"), ("initial_weights", "initial weights")):
        if a.get_fingerprint(name) != b.get_fingerprint(name):
            reasons.append(f"different {plural} ({a.get_fingerprint(name)} | {b.get_fingerprint(name)})")
    if a.plan_version != b.plan_version:
        reasons.append(f"different batch plans (version {a.plan_version} | version {b.plan_version})")
    return reasons


def find_step_mismatches(a: Run, b: Run) -> list[str]:
    """Return the reasons why the runs cannot be compared at every step: missing or repeated steps."""
    reasons = []
    for run in (a, b):
        if run.repeated_steps:
            reasons.append(
                f"{run} has more than one row for {_format_steps(run.repeated_steps)}; the last one is compared"
            )
    common = len(find_common_steps(a, b).steps)
    if a.unit != b.unit:
        return _find_epoch_mismatches(a, b, common)
    if not common:
        ranges = [f"{run} has {_format_steps(run.steps.tolist()) if len(run.steps) else 'none'}" for run in (a, b)]
        reasons.append(f"no common steps: {', '.join(ranges)}")
    elif common < max(len(a.steps), len(b.steps)):
        if a.loss_windows is not None and b.loss_windows is not None and common < min(len(a.steps), len(b.steps)):
            reasons.append(
                f"compared at the {common} steps at which the losses of both runs are means over the same steps"
            )
        missing = [(run, _find_missing_steps(run, other)) for run, other in ((a, b), (b, a))]
        if only := [f"only {run} has {_format_steps(steps.tolist())}" for run, steps in missing if len(steps)]:
            reasons.append(f"different steps: {', '.join(only)}; compared at the {common} common steps")
    return reasons


def _find_epoch_mismatches(a: Run, b: Run, common: int) -> list[str]:
    """Return the reasons why some epochs are not compared if one run counts epochs and the other steps.

    common: the number of epochs that are compared.
    """
    by_epochs, by_steps = (a, b) if a.unit == "epoch" else (b, a)
    if not (a.epoch_ends or b.epoch_ends):
        return [
            f"no common steps: {a} has a row for each {a.unit}, {b} for each {b.unit}, and no file says at which step "
            "an epoch ends; compare files that both count steps or both count epochs, add a column `epoch` to the file "
            "with a row for each step (all steps from the first one), or set train.epochs in a run of Lockstep"
        ]
    if common == len(by_epochs.steps):
        return []
    epochs = f"{common} of {len(by_epochs.steps)} epochs of {by_epochs}"
    return [f"{epochs} compared: {by_steps} lacks steps of the other epochs"]


def _find_missing_steps(run: Run, other: Run) -> np.ndarray:
    """Return the steps of `run` that `other` has neither as rows nor in its means of several steps.

    Steps that a running run may still reach are not missing.
    """
    steps = np.setdiff1d(run.steps, other.steps)
    if other.loss_windows is not None and len(other.steps):
        rows = np.minimum(np.searchsorted(other.steps, steps), len(other.steps) - 1)  # rows of the next steps of other
        is_in_mean = (steps < other.steps[rows]) & (steps > other.steps[rows] - other.loss_windows[rows])
        steps = steps[~is_in_mean]
    return steps[steps <= other.steps[-1]] if other.is_running else steps


def explain_divergence(a: Run, b: Run) -> list[str]:
    """Return explanations why curves may diverge: batches, learning rates, BatchNorm or dropout that differ."""
    notes = []
    steps, rows_a, rows_b, _ = find_common_steps(a, b)
    for name, explanation in EXPLANATIONS.items():
        values_a, values_b = a.metrics[name], b.metrics[name]
        if values_a is values_b or not (a.has_metric(name) and b.has_metric(name)):
            continue
        # TensorBoard stores float32, and a row of another program may lack the value.
        rtol, is_external = (1e-6, True) if a.external_kind or b.external_kind else (1e-9, False)
        is_same = np.isclose(values_a[rows_a], values_b[rows_b], rtol=rtol, atol=0, equal_nan=True)
        if is_external:
            is_same |= np.isnan(values_a[rows_a]) | np.isnan(values_b[rows_b])
        differing_steps = steps[~is_same]
        if len(differing_steps):
            notes.append(f"{name} differs from step {differing_steps[0]}: {explanation}")
    replicas = [run.replica_changes or run.replicas for run in (a, b)]
    if all(run.summary.get("batch_norm") == "replica" for run in (a, b)) and replicas[0] != replicas[1]:
        notes.append(
            "BatchNorm has the statistics of each replica's shard, so the curve depends on the number of replicas "
            f"({a.replicas} | {b.replicas}); with model.sync_batch_norm=true it has the statistics of the global batch"
        )
    if all(run.config.get("model.buffers") == "average" for run in (a, b)) and replicas[0] != replicas[1]:
        notes.append(
            "model.buffers=average: each replica changes the model's buffers by its own shard, so the curve depends on "
            f"the number of replicas ({a.replicas} | {b.replicas})"
        )
    if all(_has_native_dropout(run.config) for run in (a, b)) and a.label != b.label:
        notes.append(
            "model.dropout_semantics=native: every replica draws its own dropout masks, so the curves cannot agree at "
            "every step"
        )
    return notes


# For each metric, what a difference between the runs means.
EXPLANATIONS = {
    "examples": "the runs consumed different batches",
    "tokens": "the runs consumed different batches",
    "learning_rate": "the runs follow different schedules",
}


def _has_native_dropout(config: Mapping[str, object]) -> bool:
    rate = config.get("model.dropout")
    return isinstance(rate, float) and rate > 0 and config.get("model.dropout_semantics") != "aligned"


def _format_steps(steps: list[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]}"
    is_contiguous = steps[-1] - steps[0] + 1 == len(steps)
    return (
        f"steps {steps[0]} to {steps[-1]}"
        if is_contiguous
        else f"{len(steps)} steps between {steps[0]} and {steps[-1]}"
    )
