"""The time that each run took to a validation loss, for the pictures; on the page the reader chooses the loss."""

import math

import numpy as np

from common.compare.runs import Run
from common.report.bars import Bar, Chart

DIGITS = 4  # after the point, of the loss


def times_to_a_loss(runs: list[Run]) -> Chart:
    """Seconds to the first evaluation at or below the lowest loss that every run has reached."""
    evaluated = [(index, run) for index, run in enumerate(runs) if run.evaluated("loss") and run.has("seconds")]
    if not evaluated:
        return Chart("Time to a loss", "")
    target = max(float(np.nanmin(run.evals["loss"])) for _, run in evaluated)
    target = math.ceil(target * 10**DIGITS) / 10**DIGITS
    found = {index: _first(run, target) for index, run in evaluated}
    most = max(seconds for seconds, _ in found.values()) or 1.0
    caption = f"Seconds until the validation loss is {target:g} or lower, since the first step began."
    groups = [
        (index, [Bar("", f"{seconds:.4g} s, {examples:,.0f} examples", seconds / most)])
        for index, (seconds, examples) in found.items()
    ]
    return Chart("Time to a loss", caption, groups)


def _first(run: Run, target: float) -> tuple[float, float]:
    """Seconds and examples of the first evaluation that reaches a loss, which one does."""
    at = int(np.flatnonzero(run.evals["loss"] <= target)[0])
    row = np.searchsorted(run.steps, run.eval_steps[at], side="right") - 1
    return float(run.metrics["seconds"][max(row, 0)]), float(run.evals["examples"][at])
