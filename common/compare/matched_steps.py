"""Steps and evaluations that two runs, `a` and `b`, have in common, and the differences between the runs there."""

import numpy as np

from common.compare.runs import Run

Rows = np.ndarray | slice  # selects rows of a run's arrays; a slice selects all without a copy


def find_common_steps(a: Run, b: Run) -> tuple[np.ndarray, Rows, Rows]:
    """Return the steps that both runs have, and their rows in `a` and in `b`.

    A run that counts epochs has no steps in common with a run that counts steps.
    """
    if a.unit != b.unit:
        none = np.array([], dtype=np.int64)
        return none, none, none
    if np.array_equal(a.steps, b.steps):
        return a.steps, slice(None), slice(None)
    return np.intersect1d(a.steps, b.steps, assume_unique=True, return_indices=True)


def compute_differences(a: Run, b: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the differences between two runs at their common steps.

    Returns:
        The common steps, the absolute difference of the loss, and the difference of grad_norm relative to the larger
        one. A difference is infinite if a value is not finite. It is NaN if one run recorded no grad_norm at all.
    """
    steps, rows_a, rows_b = find_common_steps(a, b)
    with np.errstate(invalid="ignore", over="ignore"):  # computed in place, because the arrays of a long run are large
        loss = a.metrics["loss"][rows_a] - b.metrics["loss"][rows_b]
        np.abs(loss, out=loss)
        norm_a, norm_b = a.metrics["grad_norm"][rows_a], b.metrics["grad_norm"][rows_b]
        norm = norm_a - norm_b
        np.abs(norm, out=norm)
        scale = np.abs(norm_a)
        np.maximum(scale, np.abs(norm_b), out=scale)
        np.maximum(scale, np.finfo(np.float64).tiny, out=scale)
        norm /= scale
    have_norms = a.has_metric("grad_norm") and b.has_metric("grad_norm")
    return steps, _replace_by_infinity(loss), _replace_by_infinity(norm) if have_norms else np.full(len(steps), np.nan)


def _replace_by_infinity(values: np.ndarray) -> np.ndarray:
    """Replace values that are not finite by infinity, in place."""
    values[~np.isfinite(values)] = np.inf
    return values


def find_common_evaluations(a: Run, b: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the numbers of examples after which both runs evaluated, and their rows in `a` and in `b`.

    If one run did not record its examples, evaluations are matched by their steps instead.
    """
    by_steps = a.unit == b.unit and not (a.has_metric("examples") and b.has_metric("examples"))
    keys_a, keys_b = (run.eval_steps if by_steps else run.evals["examples"] for run in (a, b))
    common: tuple[np.ndarray, np.ndarray, np.ndarray] = np.intersect1d(keys_a, keys_b, return_indices=True)
    return common
