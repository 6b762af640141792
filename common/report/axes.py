"""X-axes of curves: the step, or a total since the start of the run."""

import numpy as np

from common.compare.runs import Run

AXES = ("step", "examples", "tokens", "seconds")


def choose_axis(runs: list[Run]) -> str:
    """Return the axis on which runs are compared: "examples" or "step".

    Return "examples" if a run is asynchronous, because it shares no steps with another run. Also return "examples" if
    the numbers of examples at equal steps differ and all runs know their numbers. Otherwise return "step".
    """
    if any(run.is_asynchronous for run in runs):
        return "examples"
    for run in runs[1:]:
        _, rows, other_rows = np.intersect1d(runs[0].steps, run.steps, assume_unique=True, return_indices=True)
        examples, other_examples = runs[0].metrics["examples"][rows], run.metrics["examples"][other_rows]
        if not np.array_equal(examples, other_examples, equal_nan=True):
            return "examples" if all(run.has_metric("examples") for run in runs) else "step"
    return "step"


def get_axis_values(run: Run, axis: str) -> np.ndarray:
    """Return the position of each step of a run on an x-axis."""
    return run.steps if axis == "step" else run.metrics[axis]
