"""The data of the report's curves, for the page's scripts: long ones in parts that keep their extremes."""

import base64
from typing import Any

import numpy as np

from common.compare.bins import bins_for, first_rows, largest, last_rows, mean, smallest
from common.compare.pair import RunPair
from common.compare.runs import Run
from common.compare.verdict import Comparison
from common.config.tasks import METRICS
from common.report.style import dash

AXES = ("step", "examples", "tokens", "seconds")
CURVES = ("loss", "grad_norm", "learning_rate")


class Arrays:
    """Arrays as the page's scripts read them, NaN and infinities included; each is held once and known by its index."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}

    def add(self, values: np.ndarray, kind: str = "f8") -> int:
        """The index of an array. `kind`: f8 or f4."""
        with np.errstate(over="ignore"):
            text = f"{kind}:{base64.b64encode(values.astype(f'<{kind}').tobytes()).decode()}"
        return self.texts.setdefault(text, len(self.texts))


def curves(comparison: Comparison) -> dict[str, Any]:
    """What the scripts of the page draw: runs with their curves and marks, and the differences of every pair.

    Arrays are indexes into `arrays`: base64 of little-endian float64 (`f8:`) or float32 (`f4:`). Where a run has more
    steps than the page holds, each entry stands for consecutive steps: `first` is the first of them, `x` are those of
    the last one, and a curve has the `last` value, the `mean`, the `min` and the `max`.
    """
    runs = comparison.runs
    bins = bins_for(len(run.steps) for run in runs)
    index = {id(run): place for place, run in enumerate(runs)}
    arrays = Arrays()
    return {
        "reference": index[id(comparison.reference)],
        "axis": usual_axis(runs),
        "axes": [axis for axis in AXES if any(np.isfinite(_x(run, axis)).any() for run in runs)],
        "runs": [_run(run, place, bins, arrays) for place, run in enumerate(runs)],
        "pairs": [_pair(pair, index, arrays) for pair in comparison.pairs],
        "arrays": list(arrays.texts),
    }


def usual_axis(runs: list[Run]) -> str:
    """Steps, or examples where a step does not have the same number of examples in every run."""
    if any(run.asynchronous for run in runs):
        return "examples"
    for run in runs[1:]:
        _, i, j = np.intersect1d(runs[0].steps, run.steps, assume_unique=True, return_indices=True)
        if not np.array_equal(runs[0].metrics["examples"][i], run.metrics["examples"][j], equal_nan=True):
            return "examples" if all(each.has("examples") for each in runs) else "step"
    return "step"


def _x(run: Run, axis: str) -> np.ndarray:
    return run.steps if axis == "step" else run.metrics[axis]


def _run(run: Run, place: int, bins: int, arrays: Arrays) -> dict[str, Any]:
    first = first_rows(len(run.steps), bins)
    last = last_rows(first, len(run.steps))
    found: dict[str, Any] = {
        "label": run.label,
        "dash": dash(place),
        "asynchronous": run.asynchronous,
        "steps": len(run.steps),
        "x": {axis: arrays.add(np.maximum.accumulate(_x(run, axis))[last]) for axis in AXES},
        "curves": {name: _curve(run.metrics[name], first, last, arrays) for name in CURVES if run.has(name)},
        "evals": _evals(run, arrays),
        "marks": _marks(run),
    }
    if len(first) < len(run.steps):
        found["first"] = arrays.add(run.steps[first])
    return found


def _curve(values: np.ndarray, first: np.ndarray, last: np.ndarray, arrays: Arrays) -> dict[str, int]:
    found = {"last": arrays.add(values[last])}
    if len(first) < len(values):
        extremes = {"min": smallest(values, first), "max": largest(values, first)}
        found |= {"mean": arrays.add(mean(values, first))} | {
            key: arrays.add(each, "f4") for key, each in extremes.items()
        }
    return found


def _evals(run: Run, arrays: Arrays) -> dict[str, int]:
    """Evaluations, with the examples, tokens and seconds of the step after which they were made."""
    steps = run.eval_steps
    found = {axis: np.full(len(steps), np.nan) for axis in AXES}
    if len(run.steps):
        rows = np.clip(np.searchsorted(run.steps, steps, side="right") - 1, 0, None)
        found |= {axis: _x(run, axis)[rows] for axis in AXES}
    found |= {"step": steps, "examples": run.evals["examples"], "loss": run.evals["loss"]}
    found |= {name: run.evals[name] for name in METRICS if run.evaluated(name)}
    return {key: arrays.add(values) for key, values in found.items()}


def _marks(run: Run) -> list[dict[str, Any]]:
    """What happened to a run, at which step: its replicas or its framework changed, it was resumed, it ended early."""
    changes = run.replica_changes
    marks = [
        {"step": step, "text": f"{before} → {after} replicas"}
        for (_, before), (step, after) in zip(changes, changes[1:], strict=False)
    ]
    marks += [{"step": step, "text": f"from here {name}"} for step, name in run.trained_by[1:]]
    if resumed := run.summary.get("resumed_from"):
        restarts = run.summary.get("restarts")
        times = f", restarted {restarts} time{'s' * (restarts != 1)}" if restarts else ""
        marks.append({"step": resumed + 1, "text": f"resumed{times}"})
    if run.summary["status"] in ("interrupted", "failed") and len(run.steps):
        marks.append({"step": int(run.steps[-1]), "text": run.summary["status"]})
    return marks


def _pair(pair: RunPair, index: dict[int, int], arrays: Arrays) -> dict[str, Any]:
    return {
        "a": index[id(pair.a)],
        "b": index[id(pair.b)],
        "verdict": pair.verdict,
        "common": pair.steps,
        "identical": pair.identical_steps,
        "tolerance": vars(pair.tolerance),
        "beyond": pair.first_beyond,
        "steps": arrays.add(pair.envelope.steps),
        "loss": arrays.add(pair.envelope.loss, "f4"),
        "grad_norm": arrays.add(pair.envelope.grad_norm, "f4"),
    }
