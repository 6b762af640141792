"""Comparison of two runs, `a` and `b`: at every step, or after equal numbers of examples if one is asynchronous.

An asynchronous run applies the updates of its workers as they arrive. An external run is a run of another program.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from common.compare.bins import MAX_BINS, find_first_rows, find_last_rows, max_per_bin
from common.compare.experiment import (
    ConfigDifferences,
    describe_environments,
    explain_divergence,
    find_curve_differences,
    find_experiment_mismatches,
    find_step_mismatches,
)
from common.compare.matched_steps import compute_differences, find_common_evaluations
from common.compare.runs import Run, list_evaluated_metrics

LOCKSTEP, DIVERGED, NOT_COMPARABLE = "lockstep", "diverged", "not comparable"
# Verdicts on a pair with an external run, whose data, weights and optimizer are unknown.
SAME_CURVE, OTHER_CURVE = "same curve, experiment unknown", "different curve, experiment unknown"
DEFAULT_PRECISION = "float32"  # its tolerance applies if neither run's precision is known


@dataclass
class Tolerance:
    """Largest difference that two runs in lockstep may have at any step."""

    loss: float  # absolute
    grad_norm: float  # relative to the larger of the two norms


@dataclass(frozen=True, eq=False)
class Envelope:
    """Largest difference of a pair in each bin, a group of consecutive common steps. Arrays have an entry per bin."""

    steps: np.ndarray = field(default_factory=lambda: np.array([], int))  # the last step of each bin
    loss: np.ndarray = field(default_factory=lambda: np.array([]))  # absolute
    grad_norm: np.ndarray = field(default_factory=lambda: np.array([]))  # relative to the larger norm


@dataclass(frozen=True, eq=False)
class RunPair:
    """Two runs, compared at their common steps, which are the steps that both runs have.

    A difference is infinite if a value is not finite, and None if there are no common steps. A pair with an
    asynchronous run has no common steps, because the k-th updates of both runs do not correspond.
    """

    a: Run
    b: Run
    verdict: str  # LOCKSTEP, DIVERGED or NOT_COMPARABLE; with an external run SAME_CURVE or OTHER_CURVE
    tolerance: Tolerance
    steps: int  # number of common steps
    max_loss_difference: float | None  # absolute
    max_loss_difference_step: int | None
    max_grad_norm_difference: float | None  # relative to the larger norm
    max_grad_norm_difference_step: int | None
    first_step_beyond: int | None  # first step at which loss or grad_norm differs by more than the tolerance
    identical_steps: int  # number of common steps at which the losses are equal
    evaluation_examples: int | None  # largest number of examples after which both runs evaluated
    evaluation_loss_difference: float | None  # absolute, after evaluation_examples
    metric_differences: dict[str, float]  # absolute difference of each metric, such as accuracy, at evaluation_examples
    config_differences: ConfigDifferences  # only of keys that may change the curve: (value of a, value of b) by key
    asynchronous: bool  # whether one of the runs is asynchronous
    reasons: list[str]  # why the pair is not comparable
    notes: list[str]  # further observations, such as batches that differ
    first_beyond: dict[str, int | None] = field(default_factory=dict)  # as first_step_beyond, by "loss" and "grad_norm"
    envelope: Envelope = field(default_factory=Envelope)

    @property
    def accuracy_difference(self) -> float | None:
        """The absolute difference of the accuracy, after evaluation_examples."""
        return self.metric_differences.get("accuracy")


def compare_pair(a: Run, b: Run, tolerances: Mapping[str, Tolerance], bins: int = MAX_BINS) -> RunPair:
    """Compare two runs.

    Args:
        a: One run.
        b: The other run.
        tolerances: A tolerance for each `Run.precision`. The larger one of the two runs' precisions applies.
        bins: The largest number of bins of the envelope.
    """
    tolerance = _choose_tolerance(a, b, tolerances)
    is_asynchronous = a.is_asynchronous or b.is_asynchronous
    no_steps = np.array([], int), np.array([]), np.array([])
    steps, loss, norm = no_steps if is_asynchronous else compute_differences(a, b)
    first_beyond = {
        "loss": _find_first(steps, loss > tolerance.loss),
        "grad_norm": _find_first(steps, norm > tolerance.grad_norm),
    }
    steps_beyond = [step for step in first_beyond.values() if step is not None]
    max_loss, max_loss_step = _find_largest(steps, loss)
    max_norm, max_norm_step = _find_largest(steps, norm)
    examples, evaluation_loss, metrics = _compare_last_evaluation(a, b)
    is_external = bool(a.external_kind or b.external_kind)
    curve_differences = {} if is_external else find_curve_differences(a, b)
    reasons, notes = _find_reasons(a, b, curve_differences, len(steps))
    has_equal_curves = not steps_beyond if len(steps) and not curve_differences else None
    if not is_asynchronous and (environments := describe_environments(a, b, has_equal_curves)):
        notes.append(environments)
    first_rows = find_first_rows(len(steps), bins)
    return RunPair(
        a=a,
        b=b,
        verdict=_judge(is_external, bool(reasons), bool(steps_beyond)),
        tolerance=tolerance,
        steps=len(steps),
        max_loss_difference=max_loss,
        max_loss_difference_step=max_loss_step,
        max_grad_norm_difference=max_norm,
        max_grad_norm_difference_step=max_norm_step,
        first_step_beyond=min(steps_beyond, default=None),
        identical_steps=int(np.count_nonzero(loss == 0)),
        evaluation_examples=examples,
        evaluation_loss_difference=evaluation_loss,
        metric_differences=metrics,
        config_differences=curve_differences,
        asynchronous=is_asynchronous,
        reasons=reasons,
        notes=notes,
        first_beyond=first_beyond,
        envelope=Envelope(
            steps[find_last_rows(first_rows, len(steps))], max_per_bin(loss, first_rows), max_per_bin(norm, first_rows)
        ),
    )


def _choose_tolerance(a: Run, b: Run, tolerances: Mapping[str, Tolerance]) -> Tolerance:
    """Return the larger tolerance of the two precisions, plus the rounding errors of files with few digits."""
    precisions = [run.precision for run in (a, b) if not run.external_kind] or [DEFAULT_PRECISION]
    applicable = [tolerances[name] for name in precisions]
    return Tolerance(
        max(tolerance.loss for tolerance in applicable) + a.loss_rounding + b.loss_rounding,
        max(tolerance.grad_norm for tolerance in applicable) + a.grad_norm_rounding + b.grad_norm_rounding,
    )


def _compare_last_evaluation(a: Run, b: Run) -> tuple[int | None, float | None, dict[str, float]]:
    """Return the number of examples before the last common evaluation, and the differences of its loss and metrics."""
    examples, rows_a, rows_b = find_common_evaluations(a, b)
    if not len(examples):
        return None, None, {}
    metrics = [name for name in list_evaluated_metrics([a]) if b.has_evaluation(name)]
    loss, *differences = (
        float(np.abs(a.evals[name][rows_a[-1]] - b.evals[name][rows_b[-1]])) for name in ("loss", *metrics)
    )
    return int(examples[-1]), loss, dict(zip(metrics, differences, strict=True))


def _find_reasons(
    a: Run, b: Run, curve_differences: ConfigDifferences, common_steps: int
) -> tuple[list[str], list[str]]:
    """Return the reasons why two runs are not comparable, and further notes on them."""
    is_external = bool(a.external_kind or b.external_kind)
    reasons = [] if is_external else find_experiment_mismatches(a, b, curve_differences)
    if asynchronous := [run.label for run in (a, b) if run.is_asynchronous]:
        names = " and ".join(asynchronous)
        return [f"asynchronous: the updates of {names} come in the order in which they are ready", *reasons], []
    notes = explain_divergence(a, b)
    if is_external and common_steps:
        return reasons, notes + find_step_mismatches(a, b)
    return reasons + find_step_mismatches(a, b), notes


def _judge(is_external: bool, has_reasons: bool, is_beyond_tolerance: bool) -> str:
    if has_reasons:
        return NOT_COMPARABLE
    if is_external:
        return OTHER_CURVE if is_beyond_tolerance else SAME_CURVE
    return DIVERGED if is_beyond_tolerance else LOCKSTEP


def _find_first(steps: np.ndarray, condition: np.ndarray) -> int | None:
    """Return the first step at which the condition holds."""
    row = int(condition.argmax()) if len(steps) else 0
    return int(steps[row]) if len(steps) and condition[row] else None


def _find_largest(steps: np.ndarray, values: np.ndarray) -> tuple[float | None, int | None]:
    """Return the largest value and its step; None if there are no values."""
    if np.isnan(values).all():  # also true of an empty array
        return None, None
    row = int(np.argmax(values))
    return float(values[row]), int(steps[row])
