"""How fast a run was, and how much its speed varied."""

from dataclasses import dataclass

import numpy as np

from common.compare.runs import Run

BLOCKS = 20  # of consecutive steps, each with a speed of its own
FEWEST_STEPS = 3  # in a block; a shorter run has fewer blocks


@dataclass(frozen=True)
class Speed:
    """Examples per second: the median of blocks of consecutive steps, and the quartiles. `blocks`: how many."""

    median: float
    lower: float
    upper: float
    blocks: int


def speed(run: Run) -> Speed | None:
    """The speed after the warm-up steps, evaluations left out; None where the run recorded too little to say.

    Of a run whose number of replicas changed, or that was resumed, only the last part counts.
    """
    seconds, examples = run.metrics["seconds"], run.metrics["examples"]
    before = max(run.summary.get("resumed_from") or 0, *(step - 1 for step, _ in run.replica_changes), 0)
    timed = np.flatnonzero(run.steps >= before + int(run.config.get("train.warmup_steps_untimed") or 0))
    recorded = run.has("examples") and run.has("seconds")
    if not recorded or len(timed) <= FEWEST_STEPS or not np.all(np.isfinite(seconds[timed])):
        return None
    blocks = min(BLOCKS, (len(timed) - 1) // FEWEST_STEPS)
    ends = timed[np.linspace(0, len(timed) - 1, blocks + 1).astype(int)]
    # An evaluation after a step lies between its row and the next one.
    paused = np.concatenate([[0.0], np.cumsum(np.nan_to_num(run.evals["duration"]))])
    elapsed = np.diff(seconds[ends]) - np.diff(paused[np.searchsorted(run.eval_steps, run.steps[ends])])
    if not np.all(elapsed > 0):
        return None
    lower, median, upper = np.percentile(np.diff(examples[ends]) / elapsed, [25, 50, 75])
    return Speed(float(median), float(lower), float(upper), blocks)


def efficiency(run: Run, runs: list[Run]) -> tuple[float, Run] | None:
    """Speed per replica as a share of that of the same strategy with the fewest replicas, and which run that is."""
    if run.external:
        return None
    alike = [each for each in runs if (each.framework, each.strategy) == (run.framework, run.strategy) and speed(each)]
    base = min(alike, key=lambda each: each.replicas, default=run)
    mine, its = speed(run), speed(base)
    if mine is None or its is None or base.replicas == run.replicas:
        return None
    return mine.median / run.replicas / (its.median / base.replicas), base
