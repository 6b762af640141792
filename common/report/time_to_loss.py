"""Chart of the time to a validation loss, for the pictures. On the page, readers choose the loss."""

import math

import numpy as np

from common.compare.runs import Run
from common.report.bars import Bar, BarChart

DIGITS = 4  # number of decimals of the loss


def build_time_to_loss_chart(runs: list[Run]) -> BarChart:
    """Build a chart of the seconds until the first evaluation at or below the lowest loss that every run reaches."""
    evaluated = [
        (index, run) for index, run in enumerate(runs) if run.has_evaluation("loss") and run.has_metric("seconds")
    ]
    if not evaluated:
        return BarChart("Time to a loss", "")
    target = max(float(np.nanmin(run.evals["loss"])) for _, run in evaluated)
    target = math.ceil(target * 10**DIGITS) / 10**DIGITS  # rounded up, so that every run reaches the loss that is shown
    reached = {index: _find_first_evaluation(run, target) for index, run in evaluated}
    longest = max(seconds for seconds, _ in reached.values()) or 1.0
    caption = f"Seconds until the validation loss is {target:g} or lower, since the first step began."
    groups = [
        (index, [Bar("", f"{seconds:.4g} s, {examples:,.0f} examples", seconds / longest)])
        for index, (seconds, examples) in reached.items()
    ]
    return BarChart("Time to a loss", caption, groups)


def _find_first_evaluation(run: Run, target: float) -> tuple[float, float]:
    """Return the seconds and the examples of the first evaluation whose loss is at most `target`."""
    index = int(np.flatnonzero(run.evals["loss"] <= target)[0])
    row = np.searchsorted(run.steps, run.eval_steps[index], side="right") - 1  # row of the last step before it
    return float(run.metrics["seconds"][max(row, 0)]), float(run.evals["examples"][index])
