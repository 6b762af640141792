"""Measures of a run: its speed, the staleness of its updates, and its losses against a reference.

The reference is the run that a report compares all other runs with. Staleness is the number of updates that other
workers of an asynchronous run applied between a worker's read of the parameters and its own update.
"""

from dataclasses import dataclass

import numpy as np

from common.compare.runs import Run

BLOCKS = 20  # groups of consecutive steps in a run; the speed of each group is measured
MIN_BLOCK_STEPS = 3  # a shorter run has fewer blocks
FINAL_SHARE = 0.1  # the final training loss is a mean over this share of the examples: the loss of one update is noisy


@dataclass(frozen=True)
class Speed:
    """Examples per second of a run: median and quartiles over blocks of consecutive steps."""

    median: float
    lower: float
    upper: float
    blocks: int  # number of blocks


@dataclass(frozen=True)
class ReferenceDifference:
    """Differences, run minus reference, after equal numbers of examples. None if a value is unknown."""

    loss: float | None  # training loss, mean over the last tenth of the examples that both runs consumed
    evaluation_loss: float | None  # difference at the last evaluation of both runs after the same number of examples
    accuracy: float | None  # difference at the same evaluation


def measure_speed(run: Run) -> Speed | None:
    """Measure the speed after the warm-up steps, without evaluations.

    If the number of replicas changed or the run was resumed, only its last part counts.

    Returns:
        The speed; None if the run recorded too few steps or no times.
    """
    seconds, examples = run.metrics["seconds"], run.metrics["examples"]
    warmup_steps = run.config.get("train.warmup_steps_untimed")
    last_change = max(run.summary.get("resumed_from") or 0, *(step - 1 for step, _ in run.replica_changes), 0)
    rows = np.flatnonzero(run.steps >= last_change + (warmup_steps if isinstance(warmup_steps, int) else 0))
    has_times = run.has_metric("examples") and run.has_metric("seconds")
    if not has_times or len(rows) <= MIN_BLOCK_STEPS or not np.all(np.isfinite(seconds[rows])):
        return None
    blocks = min(BLOCKS, (len(rows) - 1) // MIN_BLOCK_STEPS)
    block_ends = rows[np.linspace(0, len(rows) - 1, blocks + 1).astype(int)]  # the first one starts the first block
    # An evaluation after a step delays the row of the next step, so its time belongs to the steps after it.
    # Entry n of `evaluation_seconds` is the duration of the first n evaluations.
    evaluation_seconds = np.concatenate([[0.0], np.cumsum(np.nan_to_num(run.evals["duration"]))])
    evaluations_before = np.searchsorted(run.eval_steps, run.steps[block_ends])
    block_seconds = np.diff(seconds[block_ends]) - np.diff(evaluation_seconds[evaluations_before])
    if not np.all(block_seconds > 0):
        return None
    lower, median, upper = np.percentile(np.diff(examples[block_ends]) / block_seconds, [25, 50, 75])
    return Speed(float(median), float(lower), float(upper), blocks)


def measure_efficiency(run: Run, runs: list[Run]) -> tuple[float, Run] | None:
    """Measure how well a run scales from its base, the run of the same strategy with the fewest replicas.

    Returns:
        The speed per replica as a share of the base's speed per replica, and the base; None if the base has as many
        replicas as the run, or a speed is unknown.
    """
    if run.external_kind:
        return None
    strategy = run.framework, run.strategy
    candidates = [other for other in runs if (other.framework, other.strategy) == strategy and measure_speed(other)]
    base = min(candidates, key=lambda other: other.replicas, default=run)
    speed, base_speed = measure_speed(run), measure_speed(base)
    if speed is None or base_speed is None or base.replicas == run.replicas:
        return None
    return speed.median / run.replicas / (base_speed.median / base.replicas), base


def compute_speed_ratio(run: Run, reference: Run) -> float | None:
    """Return the examples per second as a multiple of the reference's; None if a speed is unknown."""
    speed, reference_speed = (each.summary.get("examples_per_second") for each in (run, reference))
    return speed / reference_speed if speed is not None and reference_speed else None


def compute_mean_staleness(run: Run) -> float | None:
    """Return the mean staleness over all updates; None if the run did not record staleness."""
    updates = sum(run.staleness.values())
    return sum(staleness * count for staleness, count in run.staleness.items()) / updates if updates else None


def compute_metric_difference(run: Run, reference: Run, name: str) -> float | None:
    """Return the difference of a value, run minus reference, at the last evaluation after equal numbers of examples.

    Return None if there is no such evaluation, or if one of the runs does not have the value.
    """
    common, rows, reference_rows = np.intersect1d(
        run.evals["examples"], reference.evals["examples"], return_indices=True
    )
    if not len(common) or not run.has_evaluation(name) or not reference.has_evaluation(name):
        return None
    return float((run.evals[name][rows] - reference.evals[name][reference_rows])[-1])


def compare_with_reference(run: Run, reference: Run) -> ReferenceDifference:
    """Return the differences, run minus reference, after equal numbers of examples."""
    loss, accuracy = (compute_metric_difference(run, reference, name) for name in ("loss", "accuracy"))
    if not (len(run.steps) and len(reference.steps)):
        return ReferenceDifference(None, loss, accuracy)
    end = min(run.metrics["examples"][-1], reference.metrics["examples"][-1])
    return ReferenceDifference(_compute_final_loss(run, end) - _compute_final_loss(reference, end), loss, accuracy)


def _compute_final_loss(run: Run, end: float) -> float:
    """Return the mean training loss over the last FINAL_SHARE of the first `end` examples."""
    examples = run.metrics["examples"]  # totals until each step
    batch_sizes = np.diff(examples, prepend=0)
    is_last = (examples > (1 - FINAL_SHARE) * end) & (examples <= end)
    return float(np.average(run.metrics["loss"][is_last], weights=batch_sizes[is_last]))
