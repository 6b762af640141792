"""Which steps two runs have in common, and their differences there."""

import numpy as np

from common.compare.runs import Run

Rows = np.ndarray | slice


def common_steps(a: Run, b: Run) -> tuple[np.ndarray, Rows, Rows]:
    """The steps that both runs have, and their rows in each run; none where one of them counts something else."""
    if a.unit != b.unit:
        none = np.array([], dtype=np.int64)
        return none, none, none
    if np.array_equal(a.steps, b.steps):
        return a.steps, slice(None), slice(None)
    return np.intersect1d(a.steps, b.steps, assume_unique=True, return_indices=True)


def differences(a: Run, b: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Common steps, |loss difference|, and |difference| / max(|a|, |b|) of grad_norm.

    A difference is infinite where a value is not finite, NaN where one of the runs has no such values at all.
    """
    steps, of_a, of_b = common_steps(a, b)
    with np.errstate(invalid="ignore", over="ignore"):  # in place: a long run's arrays are large
        loss = a.metrics["loss"][of_a] - b.metrics["loss"][of_b]
        np.abs(loss, out=loss)
        norm_a, norm_b = a.metrics["grad_norm"][of_a], b.metrics["grad_norm"][of_b]
        norm = norm_a - norm_b
        np.abs(norm, out=norm)
        scale = np.abs(norm_a)
        np.maximum(scale, np.abs(norm_b), out=scale)
        np.maximum(scale, np.finfo(np.float64).tiny, out=scale)
        norm /= scale
    both = a.has("grad_norm") and b.has("grad_norm")
    return steps, _infinite(loss), _infinite(norm) if both else np.full(len(steps), np.nan)


def _infinite(values: np.ndarray) -> np.ndarray:
    values[~np.isfinite(values)] = np.inf
    return values


def common_evaluations(a: Run, b: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """After how many examples both runs evaluated, or where one does not say that, after which steps; their rows."""
    by_steps = a.unit == b.unit and not (a.has("examples") and b.has("examples"))
    of_a, of_b = (run.eval_steps if by_steps else run.evals["examples"] for run in (a, b))
    found: tuple[np.ndarray, np.ndarray, np.ndarray] = np.intersect1d(of_a, of_b, return_indices=True)
    return found
