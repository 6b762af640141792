"""Data of the page's plots: curves of runs and differences of pairs.

A long curve is divided into bins, which are groups of consecutive steps. data.js decodes the result of
`build_page_data`.
"""

import base64
from itertools import pairwise
from typing import NotRequired, TypedDict

import numpy as np

from common.compare.bins import choose_bins, find_first_rows, find_last_rows, max_per_bin, mean_per_bin, min_per_bin
from common.compare.pair import RunPair
from common.compare.runs import Run, list_evaluated_metrics
from common.compare.verdict import Comparison
from common.report.axes import AXES, choose_axis, get_axis_values
from common.report.style import get_dash

CURVES = ("loss", "grad_norm", "learning_rate")
ArrayIndex = int  # index into PageData.arrays


class PageMark(TypedDict):
    """Event of a run that the plots mark with a vertical line."""

    step: int
    text: str


class PageRun(TypedDict):
    """A run as the scripts of the page read it. Each entry of its arrays stands for one bin of steps."""

    label: str
    dash: list[int]  # lengths of dashes and gaps, in pixels
    asynchronous: bool
    steps: int  # number of steps
    x: dict[str, ArrayIndex]  # for each axis, the value at the last step of each bin
    curves: dict[str, dict[str, ArrayIndex]]  # last, and for binned curves mean, min and max, by metric
    evals: dict[str, ArrayIndex]  # values of the evaluations, and the axes
    marks: list[PageMark]
    first: NotRequired[ArrayIndex]  # first step of each bin; only if a bin has more than one step


class PageTolerance(TypedDict):
    """Largest differences at any step that count as lockstep."""

    loss: float
    grad_norm: float


class PagePair(TypedDict):
    """A pair of runs as the scripts of the page read it."""

    a: int  # index of the run
    b: int
    verdict: str
    common: int  # number of common steps
    identical: int  # number of steps with equal losses
    tolerance: PageTolerance
    beyond: dict[str, int | None]  # first step beyond the tolerance, by metric
    steps: ArrayIndex
    loss: ArrayIndex  # largest difference in each bin
    grad_norm: ArrayIndex


class PageData(TypedDict):
    """Everything that the scripts of the page draw."""

    reference: int  # index of the run
    axis: str  # x-axis that the page shows first
    axes: list[str]  # axes that a run has values for
    runs: list[PageRun]
    pairs: list[PagePair]
    arrays: list[str]  # base64 of little-endian float64 ("f8:...") or float32 ("f4:...")


class ArrayPool:
    """Encoded arrays. Equal arrays are stored once and have one index. NaN and infinities are kept."""

    def __init__(self) -> None:
        self.indexes: dict[str, int] = {}

    def add(self, values: np.ndarray, kind: str = "f8") -> ArrayIndex:
        """Add an array as "f8" (float64) or "f4" (float32). Return its index."""
        with np.errstate(over="ignore"):
            text = f"{kind}:{base64.b64encode(values.astype(f'<{kind}').tobytes()).decode()}"
        return self.indexes.setdefault(text, len(self.indexes))


def build_page_data(comparison: Comparison) -> PageData:
    """Return the data that the scripts of the page draw."""
    runs = comparison.runs
    bins = choose_bins(len(run.steps) for run in runs)
    indexes = {id(run): index for index, run in enumerate(runs)}
    pool = ArrayPool()
    return {
        "reference": indexes[id(comparison.reference)],
        "axis": choose_axis(runs),
        "axes": [axis for axis in AXES if any(np.isfinite(get_axis_values(run, axis)).any() for run in runs)],
        "runs": [_build_run(run, index, bins, pool) for index, run in enumerate(runs)],
        "pairs": [_build_pair(pair, indexes, pool) for pair in comparison.pairs],
        "arrays": list(pool.indexes),
    }


def _build_run(run: Run, index: int, bins: int, pool: ArrayPool) -> PageRun:
    """Return the data of a run, given its index in the list of runs and the largest number of bins of a curve."""
    first_rows = find_first_rows(len(run.steps), bins)
    last_rows = find_last_rows(first_rows, len(run.steps))
    data: PageRun = {
        "label": run.label,
        "dash": get_dash(index),
        "asynchronous": run.is_asynchronous,
        "steps": len(run.steps),
        "x": {axis: pool.add(np.maximum.accumulate(get_axis_values(run, axis))[last_rows]) for axis in AXES},
        "curves": {
            name: _build_curve(run.metrics[name], first_rows, last_rows, pool)
            for name in CURVES
            if run.has_metric(name)
        },
        "evals": _build_evaluations(run, pool),
        "marks": _build_marks(run),
    }
    if len(first_rows) < len(run.steps):
        data["first"] = pool.add(run.steps[first_rows])
    return data


def _build_curve(
    values: np.ndarray, first_rows: np.ndarray, last_rows: np.ndarray, pool: ArrayPool
) -> dict[str, ArrayIndex]:
    """Return the arrays of a curve, given its values and the indexes of the first and last row of each bin."""
    curve = {"last": pool.add(values[last_rows])}
    if len(first_rows) < len(values):
        curve["mean"] = pool.add(mean_per_bin(values, first_rows))
        curve["min"] = pool.add(min_per_bin(values, first_rows), "f4")
        curve["max"] = pool.add(max_per_bin(values, first_rows), "f4")
    return curve


def _build_evaluations(run: Run, pool: ArrayPool) -> dict[str, ArrayIndex]:
    """Return the evaluations, with the examples, tokens and seconds of the last step before each evaluation."""
    steps = run.eval_steps
    columns = {axis: np.full(len(steps), np.nan) for axis in AXES}
    if len(run.steps):
        rows = np.clip(np.searchsorted(run.steps, steps, side="right") - 1, 0, None)
        columns |= {axis: get_axis_values(run, axis)[rows] for axis in AXES}
    columns |= {"step": steps, "examples": run.evals["examples"], "loss": run.evals["loss"]}
    columns |= {name: run.evals[name] for name in list_evaluated_metrics([run])}
    return {key: pool.add(values) for key, values in columns.items()}


def _build_marks(run: Run) -> list[PageMark]:
    """Return a mark for each change of replicas or framework, for a resumption and for an early end."""
    marks: list[PageMark] = [
        {"step": step, "text": f"{before} → {after} replicas"}
        for (_, before), (step, after) in pairwise(run.replica_changes)
    ]
    marks += [{"step": step, "text": f"from here {name}"} for step, name in run.trainers[1:]]
    if resumed := run.summary.get("resumed_from"):
        restarts = run.summary.get("restarts")
        times = f", restarted {restarts} time{'s' if restarts != 1 else ''}" if restarts else ""
        marks.append({"step": resumed + 1, "text": f"resumed{times}"})
    if run.summary["status"] in ("interrupted", "failed") and len(run.steps):
        marks.append({"step": int(run.steps[-1]), "text": run.summary["status"]})
    return marks


def _build_pair(pair: RunPair, indexes: dict[int, int], pool: ArrayPool) -> PagePair:
    return {
        "a": indexes[id(pair.a)],
        "b": indexes[id(pair.b)],
        "verdict": pair.verdict,
        "common": pair.steps,
        "identical": pair.identical_steps,
        "tolerance": {"loss": pair.tolerance.loss, "grad_norm": pair.tolerance.grad_norm},
        "beyond": pair.first_beyond,
        "steps": pool.add(pair.envelope.steps),
        "loss": pool.add(pair.envelope.loss, "f4"),
        "grad_norm": pool.add(pair.envelope.grad_norm, "f4"),
    }
