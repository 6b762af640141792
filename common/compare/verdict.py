"""The verdict: which runs stay in lockstep, where the others part, and which of them are different experiments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from common.compare.experiment import config_differences, explanations, may_change_curve, reasons_against
from common.compare.runs import Run, distinguish, load_run
from common.errors import UserError

LOCKSTEP, DIVERGED, NOT_COMPARABLE, ONLY_ONE_RUN = "lockstep", "diverged", "not comparable", "only one run"


@dataclass
class Tolerance:
    """Largest difference at any step that counts as lockstep: loss absolute, grad_norm relative."""

    loss: float
    grad_norm: float


@dataclass(frozen=True, eq=False)
class Pair:
    """Two runs compared at their common steps. Differences are inf where a value is not finite, None without steps."""

    a: Run
    b: Run
    verdict: str  # lockstep, diverged or not comparable
    tolerance: Tolerance
    steps: int  # number of common steps
    max_loss_difference: float | None
    max_loss_difference_step: int | None
    max_grad_norm_difference: float | None  # relative
    max_grad_norm_difference_step: int | None
    first_step_beyond: int | None  # the first step at which loss or grad_norm differs by more than the tolerance
    evaluation_step: int | None  # the last step at which both runs evaluated
    evaluation_loss_difference: float | None
    accuracy_difference: float | None
    config_differences: dict[str, tuple[Any, Any]]  # of the keys that may change a curve
    reasons: list[str]  # why the pair is not comparable
    notes: list[str]  # what else was seen, e.g. that the batches differ


@dataclass(frozen=True, eq=False)
class Comparison:
    """Every pair of runs, and the verdict over all of them: diverged before not comparable before lockstep."""

    runs: list[Run]
    reference: Run
    tolerances: Mapping[str, Tolerance]
    pairs: list[Pair]
    verdict: str
    sentence: str
    notes: list[str] = field(default_factory=list)


def compare_runs(
    run_dirs: Sequence[Path], tolerances: Mapping[str, Tolerance], reference: str | None = None
) -> Comparison:
    """Compare every pair of the runs, in the order given.

    tolerances: per train.precision; a pair gets those of its coarser precision. reference: directory or name of the
    run that others are measured against in tables and plots (default: the first); the verdict does not depend on it.
    Raises UserError.
    """
    runs = [load_run(Path(path)) for path in run_dirs]
    seen: set[Path] = set()
    for run in runs:
        if run.path.resolve() in seen:
            raise UserError(f"{run.path}: named twice; name each run once")
        seen.add(run.path.resolve())
        if run.precision not in tolerances:
            raise UserError(
                f"{run.path}: no tolerance for train.precision '{run.precision}': add "
                f"+tolerances.{run.precision}.loss=... and +tolerances.{run.precision}.grad_norm=..."
            )
    if not runs:
        raise UserError("no run to compare")
    distinguish(runs)
    pairs = [_compare_pair(a, b, tolerances) for a, b in combinations(runs, 2)]
    verdict, sentence = _overall(runs, pairs)
    notes = [note for run in runs for note in run.notes]
    notes += [f"{run}: status {run.summary['status']}" for run in runs if run.summary["status"] != "completed"]
    notes += [f"{pair.a} and {pair.b}: {note}" for pair in pairs for note in pair.notes]
    return Comparison(runs, _find_reference(runs, reference), tolerances, pairs, verdict, sentence, notes)


def differences(a: Run, b: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Common steps, |loss difference|, and |difference| / max(|a|, |b|) of grad_norm.

    A difference is infinite where a value is not finite.
    """
    steps, of_a, of_b = np.intersect1d(a.steps, b.steps, assume_unique=True, return_indices=True)
    loss_a, loss_b = a.metrics["loss"][of_a], b.metrics["loss"][of_b]
    norm_a, norm_b = a.metrics["grad_norm"][of_a], b.metrics["grad_norm"][of_b]
    with np.errstate(invalid="ignore", over="ignore"):
        loss = np.abs(loss_a - loss_b)
        scale = np.maximum(np.maximum(np.abs(norm_a), np.abs(norm_b)), np.finfo(np.float64).tiny)
        norm = np.abs(norm_a - norm_b) / scale
    return steps, np.where(np.isfinite(loss), loss, np.inf), np.where(np.isfinite(norm), norm, np.inf)


def _compare_pair(a: Run, b: Run, tolerances: Mapping[str, Tolerance]) -> Pair:
    of_a, of_b = tolerances[a.precision], tolerances[b.precision]
    tolerance = Tolerance(max(of_a.loss, of_b.loss), max(of_a.grad_norm, of_b.grad_norm))
    steps, loss, norm = differences(a, b)
    beyond = steps[(loss > tolerance.loss) | (norm > tolerance.grad_norm)]
    max_loss, max_loss_step = _largest(steps, loss)
    max_norm, max_norm_step = _largest(steps, norm)
    eval_steps, i, j = np.intersect1d(a.eval_steps, b.eval_steps, assume_unique=True, return_indices=True)
    evals = {name: np.abs(a.evals[name][i] - b.evals[name][j]) for name in ("loss", "accuracy")}
    changed = {key: values for key, values in config_differences(a, b).items() if may_change_curve(key, a, b)}
    reasons = reasons_against(a, b, changed)
    return Pair(
        a=a,
        b=b,
        verdict=NOT_COMPARABLE if reasons else DIVERGED if len(beyond) else LOCKSTEP,
        tolerance=tolerance,
        steps=len(steps),
        max_loss_difference=max_loss,
        max_loss_difference_step=max_loss_step,
        max_grad_norm_difference=max_norm,
        max_grad_norm_difference_step=max_norm_step,
        first_step_beyond=int(beyond[0]) if len(beyond) else None,
        evaluation_step=int(eval_steps[-1]) if len(eval_steps) else None,
        evaluation_loss_difference=float(evals["loss"][-1]) if len(eval_steps) else None,
        accuracy_difference=float(evals["accuracy"][-1]) if len(eval_steps) else None,
        config_differences=changed,
        reasons=reasons,
        notes=explanations(a, b),
    )


def _largest(steps: np.ndarray, values: np.ndarray) -> tuple[float | None, int | None]:
    if not len(steps):
        return None, None
    at = int(np.argmax(values))
    return float(values[at]), int(steps[at])


def _overall(runs: list[Run], pairs: list[Pair]) -> tuple[str, str]:
    if not pairs:
        run = runs[0]
        return ONLY_ONE_RUN, f"{ONLY_ONE_RUN}: {run} with {len(run.steps)} steps; name a second one to compare it with"
    by_verdict = {v: [pair for pair in pairs if pair.verdict == v] for v in (DIVERGED, NOT_COMPARABLE, LOCKSTEP)}
    verdict = next(v for v, those in by_verdict.items() if those)
    first = min(by_verdict[verdict], key=lambda pair: pair.first_step_beyond or 0)
    others = "".join(f", {len(those)} {v}" for v, those in by_verdict.items() if those and v != verdict)
    count = f"{len(by_verdict[verdict])} of {len(pairs)} pairs{others}; " if len(pairs) > 1 else ""
    if verdict == LOCKSTEP:
        return verdict, (
            f"{verdict}: {len(runs)} runs agree at all {first.steps} steps: "
            f"loss within {max(p.max_loss_difference or 0 for p in pairs):.2g} (tolerance {first.tolerance.loss:g}), "
            f"grad_norm within {max(p.max_grad_norm_difference or 0 for p in pairs):.2g} "
            f"(relative; tolerance {first.tolerance.grad_norm:g})"
        )
    return verdict, f"{verdict}: {count}{explain(first)}"


def explain(pair: Pair) -> str:
    """One line on one pair: why it is not comparable, at which step it diverged, or how closely it agrees."""
    names = f"{pair.a} and {pair.b}"
    if pair.verdict == NOT_COMPARABLE:
        return f"{names}: {'; '.join(pair.reasons)}"
    if pair.verdict == LOCKSTEP:
        return f"{names} agree at all {pair.steps} steps"
    steps, loss, norm = differences(pair.a, pair.b)
    at = int(np.flatnonzero(steps == pair.first_step_beyond)[0])
    apart = []
    for name, value, tolerance in (
        ("loss", loss[at], pair.tolerance.loss),
        ("grad_norm", norm[at], pair.tolerance.grad_norm),
    ):
        if value > tolerance:
            words = f"differs by {value:.2g}" if np.isfinite(value) else "is not finite"
            apart.append(f"{name} {words} (tolerance {tolerance:g}{', relative' if name == 'grad_norm' else ''})")
    return f"{names} part at step {pair.first_step_beyond} of {pair.steps}: {' and '.join(apart)}"


def _find_reference(runs: list[Run], reference: str | None) -> Run:
    if reference is None:
        return runs[0]
    for run in runs:
        if reference in (run.path.name, str(run.path)) or Path(reference).resolve() == run.path.resolve():
            return run
    raise UserError(
        f"reference={reference}: none of the runs compared; choose one of {', '.join(str(r.path) for r in runs)}"
    )
