"""Steps and evaluations that two runs, `a` and `b`, have in common, and the differences between the runs there.

At a common step with the window w, the mean losses of the w steps that end there are compared. The window is 1 unless
an external run has means of several steps.
"""

from typing import NamedTuple

import numpy as np

from common.compare.runs import Run

Rows = np.ndarray | slice  # selects rows of a run's arrays; a slice selects all without a copy


class CommonSteps(NamedTuple):
    """Steps that two runs have in common; epochs if one run counts epochs."""

    steps: np.ndarray
    rows_a: Rows
    rows_b: Rows
    windows: np.ndarray | None = None  # the window of each step; None if every window is 1


def find_common_steps(a: Run, b: Run) -> CommonSteps:
    """Return the steps that both runs have, and their rows in `a` and in `b`.

    If a run has means of several steps, a step is common only if the other run has the mean of the same steps, or the
    losses of all these steps. A run that counts epochs has steps in common with a run that counts steps only if one of
    them knows the last step of each epoch.
    """
    if a.unit != b.unit:
        return _find_common_epochs(a, b)
    if np.array_equal(a.steps, b.steps) and a.loss_windows is None and b.loss_windows is None:
        return CommonSteps(a.steps, slice(None), slice(None))
    steps, rows_a, rows_b = np.intersect1d(a.steps, b.steps, assume_unique=True, return_indices=True)
    if a.loss_windows is None and b.loss_windows is None:
        return CommonSteps(steps, rows_a, rows_b)
    windows = np.maximum(_get_windows(a, rows_a), _get_windows(b, rows_b))
    return _keep_same_means(a, b, CommonSteps(steps, rows_a, rows_b, windows))


def _find_common_epochs(a: Run, b: Run) -> CommonSteps:
    """Return the epochs whose mean loss both runs have.

    One run has a row for each epoch. The other run has a row for each step; the mean of an epoch is computed from them.
    """
    ends = a.epoch_ends or b.epoch_ends or []
    epochs = np.arange(1, len(ends) + 1)
    # The end of each epoch as each run counts it: the number of the epoch, or its last step.
    keys = [epochs if run.unit == "epoch" else np.array(ends, np.int64) for run in (a, b)]
    is_recorded = [np.isin(run_keys, run.steps) for run, run_keys in zip((a, b), keys, strict=True)]
    common = is_recorded[0] & is_recorded[1]
    rows_a, rows_b = (np.searchsorted(run.steps, run_keys[common]) for run, run_keys in zip((a, b), keys, strict=True))
    windows = np.diff(np.array(ends, np.int64), prepend=0)[common]
    return _keep_same_means(a, b, CommonSteps(epochs[common], rows_a, rows_b, windows))


def _get_windows(run: Run, rows: np.ndarray) -> np.ndarray:
    return np.ones(len(rows), np.int64) if run.loss_windows is None else run.loss_windows[rows]


def _keep_same_means(a: Run, b: Run, common: CommonSteps) -> CommonSteps:
    """Leave out the steps at which a run has neither the mean of the window nor the losses of all of its steps.

    A window of 0 is unknown.
    """
    steps, rows_a, rows_b, windows = common
    assert windows is not None and isinstance(rows_a, np.ndarray) and isinstance(rows_b, np.ndarray)
    is_kept = (windows > 0) & _has_means(a, rows_a, windows) & _has_means(b, rows_b, windows)
    return CommonSteps(steps[is_kept], rows_a[is_kept], rows_b[is_kept], windows[is_kept])


def _has_means(run: Run, rows: np.ndarray, windows: np.ndarray) -> np.ndarray:
    """Return for each row whether the run has the mean of its window, or the losses of all steps of the window."""
    if run.unit == "epoch":
        return np.ones(len(rows), bool)
    if run.loss_windows is not None:
        return np.asarray(run.loss_windows[rows] == windows)
    first_rows = rows - windows + 1
    return (first_rows >= 0) & (run.steps[np.maximum(first_rows, 0)] == run.steps[rows] - windows + 1)


def compute_differences(a: Run, b: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute the differences between two runs at their common steps.

    Returns:
        The common steps, the absolute difference of the loss, and the difference of grad_norm relative to the larger
        of the two norms. A difference is infinite if a value is not finite. The difference of grad_norm is NaN if one
        run recorded no grad_norm at all, or if one run counts epochs and the other steps.
    """
    common = find_common_steps(a, b)
    steps, rows_a, rows_b, _ = common
    with np.errstate(invalid="ignore", over="ignore"):
        loss = _compute_losses(a, rows_a, common, b) - _compute_losses(b, rows_b, common, a)
        np.abs(loss, out=loss)  # in place, because the arrays of a long run are large
        norm_a, norm_b = a.metrics["grad_norm"][rows_a], b.metrics["grad_norm"][rows_b]
        norm = norm_a - norm_b
        np.abs(norm, out=norm)
        scale = np.abs(norm_a)
        np.maximum(scale, np.abs(norm_b), out=scale)
        np.maximum(scale, np.finfo(np.float64).tiny, out=scale)
        norm /= scale
    have_norms = a.has_metric("grad_norm") and b.has_metric("grad_norm") and a.unit == b.unit
    return steps, _replace_by_infinity(loss), _replace_by_infinity(norm) if have_norms else np.full(len(steps), np.nan)


def _compute_losses(run: Run, rows: Rows, common: CommonSteps, other: Run) -> np.ndarray:
    """Return the losses of a run in the given rows. If the other run has means, average the losses over its windows."""
    losses, windows = run.metrics["loss"], common.windows
    if windows is None or run.loss_windows is not None or run.unit == "epoch" or not len(common.steps):
        return losses[rows]
    assert isinstance(rows, np.ndarray)
    weights = np.ones(len(losses))
    if other.weighs_examples and np.isfinite(run.metrics["examples"]).all():
        weights = np.diff(run.metrics["examples"], prepend=0.0)
        if run.steps[0] > 1:  # the first difference of the running total includes the steps before the first row
            weights[0] = weights[-1]
    # reduceat sums the rows of each window. It also sums the rows between two windows, which `[::2]` drops.
    bounds = np.column_stack((rows - windows + 1, rows + 1)).ravel()
    totals, total_weights = (
        np.add.reduceat(np.append(values, 0.0), bounds)[::2] for values in (losses * weights, weights)
    )
    return np.asarray(totals / total_weights)


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
