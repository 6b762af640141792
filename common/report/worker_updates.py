"""Updates of asynchronous runs: when each worker made its updates, and how the loss depends on staleness.

Staleness is the number of updates that other workers applied between a worker's read of the parameters and its own
update.
"""

from dataclasses import dataclass

import numpy as np

from common.compare.runs import Run

MAX_BINS, MIN_BINS = 240, 30  # limits of the number of bins, which are equal parts of the time of a timeline
UPDATES_PER_BIN = 8  # updates of all workers in a bin, unless the number of bins reaches a limit
NEIGHBOURS = 25  # the usual loss of an update is the mean loss of this number of updates on each side of it
MAX_ROWS = 12  # rows of one run, one for each staleness; all larger staleness shares the last row


@dataclass(frozen=True)
class WorkerLane:
    """Updates of one worker over time."""

    name: str
    heights: np.ndarray  # updates in each bin, as shares of the largest number of any worker
    text: str  # number of updates and longest pause, for the reader

    @property
    def path(self) -> str:
        """The SVG path of the bars, one unit wide for each bin and 1 high. Equal neighbours share a line."""
        corners = [
            f"H{index}V{1 - height:.3g}"
            for index, height in enumerate(self.heights)
            if index == 0 or height != self.heights[index - 1]
        ]
        return f"M0 1{''.join(corners)}H{len(self.heights)}V1Z"


@dataclass(frozen=True)
class WorkerTimeline:
    """Lanes of the workers of one run."""

    index: int  # index of the run
    seconds: float  # end of the timeline
    bins: int
    lanes: list[WorkerLane]


@dataclass(frozen=True)
class ExcessLoss:
    """Loss of the updates of one staleness above the usual loss."""

    staleness: str  # a number or a range
    updates: int
    loss: float  # mean
    standard_error: float | None  # None for a single update


def build_worker_timelines(runs: list[Run]) -> list[WorkerTimeline]:
    """Return a timeline for each run that recorded the worker and the time of its updates."""
    timelines = []
    for index, run in enumerate(runs):
        if "worker" not in run.updates:
            continue
        is_known = np.isfinite(run.updates["worker"]) & np.isfinite(run.metrics["seconds"])
        if is_known.any():
            workers, seconds = run.updates["worker"][is_known].astype(int), run.metrics["seconds"][is_known]
            timelines.append(_build_timeline(index, workers, seconds))
    return timelines


def _build_timeline(index: int, workers: np.ndarray, seconds: np.ndarray) -> WorkerTimeline:
    """Build the timeline of a run from the worker and the time of each update."""
    end = float(seconds.max()) or 1.0
    bins = min(MAX_BINS, max(MIN_BINS, len(seconds) // UPDATES_PER_BIN))
    times = {int(worker): seconds[workers == worker] for worker in np.unique(workers)}
    counts = {worker: np.histogram(worker_times, bins, (0, end))[0] for worker, worker_times in times.items()}
    largest = max(count.max() for count in counts.values())
    lanes = [
        WorkerLane(f"worker {worker}", counts[worker] / largest, _describe_updates(worker_times, end))
        for worker, worker_times in times.items()
    ]
    return WorkerTimeline(index, end, bins, lanes)


def _describe_updates(seconds: np.ndarray, end: float) -> str:
    pauses = np.diff(np.sort(seconds), prepend=0.0, append=end)
    return f"{len(seconds):,} updates, longest pause {pauses.max():.3g} s"


def compute_excess_losses(run: Run) -> list[ExcessLoss]:
    """Return the loss above the usual loss for each staleness.

    The loss falls and staleness grows during a run. Each update is therefore compared with its neighbours.
    """
    staleness = run.updates["staleness"]
    losses = run.metrics["loss"]
    is_known = np.isfinite(staleness) & np.isfinite(losses)
    staleness, losses = staleness[is_known].astype(int), losses[is_known]
    excess = losses - _compute_usual_losses(losses)
    groups = [(str(value), staleness == value) for value in np.unique(staleness)]
    if len(groups) > MAX_ROWS:
        first = int(groups[MAX_ROWS - 1][0])
        groups = [*groups[: MAX_ROWS - 1], (f"{first} to {staleness.max()}", staleness >= first)]
    return [
        ExcessLoss(name, int(mask.sum()), float(excess[mask].mean()), _compute_standard_error(excess[mask]))
        for name, mask in groups
    ]


def _compute_usual_losses(losses: np.ndarray) -> np.ndarray:
    """Return the mean loss of the neighbours of each update, including the update itself."""
    sums = np.concatenate([[0.0], np.cumsum(losses)])
    indexes = np.arange(len(losses))
    # As many neighbours before as after the update, so that the trend of the loss cancels out.
    half_width = np.minimum(NEIGHBOURS, np.minimum(indexes, len(losses) - 1 - indexes))
    means: np.ndarray = (sums[indexes + half_width + 1] - sums[indexes - half_width]) / (2 * half_width + 1)
    return means


def _compute_standard_error(values: np.ndarray) -> float | None:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
