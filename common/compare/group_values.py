"""Values that groups of seeds are compared by: curves over the same examples, validation metrics, time to a loss.

The values of a run that diverged are not finite. Such a run is never left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from common.compare.metric_names import FINAL_LOSS, VALIDATION_LOSS, describe_metric_name
from common.compare.runs import Run, list_evaluated_metrics
from common.compare.seed_groups import SeedGroup, find_divergence
from common.statistics.judge import Values
from common.statistics.paired import Shift, measure_shift

POINTS = 50  # number of points of a curve; a point is the mean loss over an equal part of the examples
FINAL_SHARE = 0.1  # part of the curve whose mean is the final loss
DIGITS = 3  # number of decimals of the loss in `measure_time_to_loss`


@dataclass(frozen=True)
class CurveAxis:
    """The x axis of the curves: examples if all runs record them, because asynchronous runs do not share steps."""

    unit: str  # "example", "step" or "epoch"
    end: float  # the curves are compared up to here
    points: int  # number of points of each curve
    cut: str  # sentence on the runs that are longer than the shortest one; empty if all are equally long


@dataclass(frozen=True)
class TimeToLoss:
    """Progress after which the curve of each run is first at or below a loss, and the shift between the groups.

    The loss is the lowest that every run reaches.
    """

    loss: float
    unit: str  # "example", "step" or "epoch"
    reference: np.ndarray  # float64 [seeds], in the order of the group
    contestant: np.ndarray
    shift: Shift


def choose_axis(reference: SeedGroup, contestant: SeedGroup) -> CurveAxis:
    """Choose the x axis of the curves: examples, or steps if a run did not record its examples."""
    runs = [*reference.runs, *contestant.runs]
    finite = [run for run in runs if not find_divergence(run)] or runs
    has_examples = all(np.isfinite(run.metrics["examples"]).all() for run in runs)
    unit = "example" if has_examples else runs[0].unit
    ends = [float(_get_progress(run, unit)[-1]) for run in finite]
    end, longest = min(ends), max(ends)
    rows = min(int(np.count_nonzero(_get_progress(run, unit) <= end)) for run in finite)
    cut = ""
    # One row at or beyond `end` is a run's own last one, which may end a little later; more rows mean a longer run.
    if any(np.count_nonzero(_get_progress(run, unit) >= end) > 1 for run in finite):
        shortest = finite[ends.index(end)]
        group = reference if shortest in reference.runs else contestant
        name = f"{group.name_run(group.runs.index(shortest))} of {group}"
        cut = f"the curves are compared up to {end:,.0f} {unit}s, where {name} ends; other runs have up to "
        cut += f"{longest:,.0f}; train all runs equally long"
    return CurveAxis(unit, end, max(1, min(POINTS, rows)), cut)


def collect_curves(group: SeedGroup, progress: CurveAxis) -> np.ndarray:
    """Return the training losses of each run, float64 [seeds, points]; NaN for a run that diverged."""
    return np.array([_collect_curve(run, progress) for run in group.runs])


def _collect_curve(run: Run, progress: CurveAxis) -> np.ndarray:
    """Return the mean loss over each of `points` equal parts, interpolated from the running total of the loss."""
    if find_divergence(run):
        return np.full(progress.points, math.nan)
    positions = np.concatenate(([0.0], _get_progress(run, progress.unit)))
    totals = np.concatenate(([0.0], np.cumsum(run.metrics["loss"] * np.diff(positions))))
    edges = np.linspace(0.0, progress.end, progress.points + 1)
    return np.asarray(np.diff(np.interp(edges, positions, totals)) / np.diff(edges))


def _get_progress(run: Run, unit: str) -> np.ndarray:
    return run.metrics["examples"] if unit == "example" else run.steps.astype(np.float64)


def collect_metrics(
    reference: SeedGroup, contestant: SeedGroup, curves: tuple[np.ndarray, np.ndarray]
) -> tuple[dict[str, Values], list[str]]:
    """Return the final training loss and the metrics of the last evaluation that all runs made, and notes.

    A metric is compared if at least one run has a finite value. The runs whose value is not finite then count as a
    difference. A metric that a run did not record is left out with a note.
    """
    final_points = max(1, round(FINAL_SHARE * curves[0].shape[1]))
    losses = [curve[:, -final_points:].mean(axis=1) for curve in curves]
    metrics = {FINAL_LOSS: Values(*losses)}
    converged_run_names = {
        run: f"{group.name_run(position)} of {group}"
        for group in (reference, contestant)
        for position, run in enumerate(group.runs)
        if not find_divergence(run)
    }
    if not any(run.recorded_evaluations for run in converged_run_names):
        return metrics, []
    if without_evaluation := [name for run, name in converged_run_names.items() if not run.recorded_evaluations]:
        return metrics, [f"no validation is compared, because {_join_names(without_evaluation)} made none"]
    rows, notes = _find_last_evaluation([*converged_run_names])
    for name in ("loss", *list_evaluated_metrics(converged_run_names)):
        label = VALIDATION_LOSS if name == "loss" else name
        if without_metric := [
            title for run, title in converged_run_names.items() if name not in run.recorded_evaluations
        ]:
            notes.append(
                f"{describe_metric_name(label)} is not compared: not recorded by {_join_names(without_metric)}"
            )
            continue
        metrics[label] = Values(
            *(
                np.array(
                    [run.evals[name][rows[run.path]] if run in converged_run_names else math.nan for run in group.runs]
                )
                for group in (reference, contestant)
            )
        )
    return metrics, notes


def _join_names(names: Sequence[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _find_last_evaluation(runs: Sequence[Run]) -> tuple[dict[object, int], list[str]]:
    """Find the last evaluation that all runs made after the same number of examples.

    Return its row for each run's path, and notes.
    """
    has_examples = all(run.has_metric("examples") for run in runs)
    keys = [run.evals["examples"] if has_examples else run.eval_steps for run in runs]
    common = reduce(np.intersect1d, keys)
    if len(common):
        return {run.path: int(np.flatnonzero(key == common[-1])[-1]) for run, key in zip(runs, keys, strict=True)}, []
    note = "no evaluation after the same number of examples in all runs; the last one of each run is compared"
    return {run.path: len(run.eval_steps) - 1 for run in runs}, [note]


def measure_time_to_loss(curves: tuple[np.ndarray, np.ndarray], progress: CurveAxis) -> TimeToLoss | None:
    """Measure when each curve first reaches the lowest loss that all reach; None if a run diverged."""
    if not all(np.isfinite(curve).all() for curve in curves):
        return None
    loss = max(float(curve.min(axis=1).max()) for curve in curves)
    loss = math.ceil(loss * 10**DIGITS) / 10**DIGITS  # rounded up, so that every run reaches the loss that is shown
    times = [(np.argmax(curve <= loss, axis=1) + 1) * progress.end / progress.points for curve in curves]
    return TimeToLoss(loss, progress.unit, times[0], times[1], measure_shift(times[1] - times[0], progress.end))
