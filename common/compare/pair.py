"""Compares two runs: at every step, or, where one is asynchronous, after the same number of examples."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from common.compare.bins import BUDGET, first_rows, largest, last_rows
from common.compare.experiment import (
    curve_differences,
    experiment_mismatches,
    explanations,
    step_mismatches,
)
from common.compare.runs import Run
from common.compare.steps import common_evaluations, differences

LOCKSTEP, DIVERGED, NOT_COMPARABLE = "lockstep", "diverged", "not comparable"
# Of a run from elsewhere, whose data, weights and optimizer are unknown.
SAME_CURVE, OTHER_CURVE = "same curve, experiment unknown", "different curve, experiment unknown"
USUAL_PRECISION = "float32"  # whose tolerance applies where neither run's precision is known


@dataclass
class Tolerance:
    """Largest difference at any step that counts as lockstep: loss absolute, grad_norm relative."""

    loss: float
    grad_norm: float


@dataclass(frozen=True, eq=False)
class Envelope:
    """The largest differences in each of some thousand equal parts of the common steps, as long as `steps`."""

    steps: np.ndarray = field(default_factory=lambda: np.array([], int))  # the last one of each part
    loss: np.ndarray = field(default_factory=lambda: np.array([]))
    grad_norm: np.ndarray = field(default_factory=lambda: np.array([]))  # relative


@dataclass(frozen=True, eq=False)
class RunPair:
    """Two runs compared at their common steps. Differences are inf where a value is not finite, None without steps.

    A pair with an asynchronous run has no common steps: its k-th update does not correspond to the k-th of another run.
    """

    a: Run
    b: Run
    verdict: str  # lockstep, diverged, not comparable, or one of a run from elsewhere
    tolerance: Tolerance
    steps: int  # number of common steps
    max_loss_difference: float | None
    max_loss_difference_step: int | None
    max_grad_norm_difference: float | None  # relative
    max_grad_norm_difference_step: int | None
    first_step_beyond: int | None  # the first step at which loss or grad_norm differs by more than the tolerance
    identical_steps: int  # at how many common steps the losses are the same number
    evaluation_examples: int | None  # the last number of examples after which both runs evaluated
    evaluation_loss_difference: float | None
    accuracy_difference: float | None
    config_differences: dict[str, tuple[Any, Any]]  # of the keys that may change a curve
    asynchronous: bool
    reasons: list[str]  # why the pair is not comparable
    notes: list[str]  # further observations, e.g. that the batches differ
    first_beyond: dict[str, int | None] = field(default_factory=dict)  # the same of loss and of grad_norm
    envelope: Envelope = field(default_factory=Envelope)


def compare_pair(a: Run, b: Run, tolerances: Mapping[str, Tolerance], bins: int = BUDGET) -> RunPair:
    """Compare two runs, with the tolerance of the coarser precision. `bins`: the parts of the envelope."""
    known = [run.precision for run in (a, b) if not run.external] or [USUAL_PRECISION]
    of_a, of_b = tolerances[known[0]], tolerances[known[-1]]
    tolerance = Tolerance(max(of_a.loss, of_b.loss), max(of_a.grad_norm, of_b.grad_norm))
    asynchronous = [run for run in (a, b) if run.asynchronous]
    steps, loss, norm = differences(a, b) if not asynchronous else (np.array([], int), np.array([]), np.array([]))
    first_beyond = {
        "loss": _first(steps, loss > tolerance.loss),
        "grad_norm": _first(steps, norm > tolerance.grad_norm),
    }
    beyond = [step for step in first_beyond.values() if step is not None]
    max_loss, max_loss_step = _largest(steps, loss)
    max_norm, max_norm_step = _largest(steps, norm)
    examples, i, j = common_evaluations(a, b)
    evals = {name: np.abs(a.evals[name][i] - b.evals[name][j]) for name in ("loss", "accuracy")}
    measured = a.evaluated("accuracy") and b.evaluated("accuracy")
    unknown = bool(a.external or b.external)
    changed = {} if unknown else curve_differences(a, b)
    reasons = [] if unknown else experiment_mismatches(a, b, changed)
    notes = [] if asynchronous else explanations(a, b)
    if asynchronous:
        names = " and ".join(run.label for run in asynchronous)
        reasons.insert(0, f"asynchronous: the updates of {names} come in the order in which they are ready")
    elif unknown and len(steps):
        notes += step_mismatches(a, b)
    else:
        reasons += step_mismatches(a, b)
    verdict = NOT_COMPARABLE if reasons else DIVERGED if beyond else LOCKSTEP
    verdict = {DIVERGED: OTHER_CURVE, LOCKSTEP: SAME_CURVE}.get(verdict, verdict) if unknown else verdict
    first = first_rows(len(steps), bins)
    return RunPair(
        a=a,
        b=b,
        verdict=verdict,
        tolerance=tolerance,
        steps=len(steps),
        max_loss_difference=max_loss,
        max_loss_difference_step=max_loss_step,
        max_grad_norm_difference=max_norm,
        max_grad_norm_difference_step=max_norm_step,
        first_step_beyond=min(beyond, default=None),
        identical_steps=int(np.count_nonzero(loss == 0)),
        evaluation_examples=int(examples[-1]) if len(examples) else None,
        evaluation_loss_difference=float(evals["loss"][-1]) if len(examples) else None,
        accuracy_difference=float(evals["accuracy"][-1]) if len(examples) and measured else None,
        config_differences=changed,
        asynchronous=bool(asynchronous),
        reasons=reasons,
        notes=notes,
        first_beyond=first_beyond,
        envelope=Envelope(steps[last_rows(first, len(steps))], largest(loss, first), largest(norm, first)),
    )


def _first(steps: np.ndarray, chosen: np.ndarray) -> int | None:
    at = int(chosen.argmax()) if len(steps) else 0
    return int(steps[at]) if len(steps) and chosen[at] else None


def _largest(steps: np.ndarray, values: np.ndarray) -> tuple[float | None, int | None]:
    if np.isnan(values).all():  # also where there are none
        return None, None
    at = int(np.argmax(values))
    return float(values[at]), int(steps[at])


def explain(pair: RunPair) -> str:
    """One line on one pair: why it is not comparable, at which step it diverged, or how closely it agrees."""
    names = f"{pair.a} and {pair.b}"
    if pair.verdict == NOT_COMPARABLE:
        return f"{names}: {'; '.join(pair.reasons)}"
    if pair.verdict in (LOCKSTEP, SAME_CURVE):
        return f"{names} agree at all {pair.steps} steps" + (" that both have" if pair.verdict == SAME_CURVE else "")
    steps, loss, norm = differences(pair.a, pair.b)
    at = int(np.flatnonzero(steps == pair.first_step_beyond)[0])
    apart = []
    for name, value, tolerance in (
        ("loss", loss[at], pair.tolerance.loss),
        ("grad_norm", norm[at], pair.tolerance.grad_norm),
    ):
        if value > tolerance:
            how = f"differs by {value:.2g}" if np.isfinite(value) else "is not finite"
            apart.append(f"{name} {how} (tolerance {tolerance:g}{', relative' if name == 'grad_norm' else ''})")
    return f"{names} part at step {pair.first_step_beyond} of {pair.steps}: {' and '.join(apart)}"
