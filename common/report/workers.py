"""Asynchronous runs, update by update: when each worker's came, and whether stale ones have a higher loss."""

from dataclasses import dataclass

import numpy as np

from common.compare.runs import Run
from common.report.formats import TableSection, format_number

MOST_BINS, FEWEST_BINS = 240, 30  # of a timeline
UPDATES_OF_BIN = 8  # of all workers together, where that is between these numbers
AROUND = 25  # updates on each side of one, whose mean loss is what is usual there
MOST_ROWS = 12  # of one run; what is more stale is one row
COLUMNS = ["run", "staleness", "updates", "loss above the usual", "standard error"]


@dataclass(frozen=True)
class Lane:
    """One worker. heights: updates in each bin of the timeline, as shares of the most that any worker made in one."""

    name: str
    heights: np.ndarray
    text: str

    @property
    def path(self) -> str:
        """Of an SVG as wide as there are bins, and 1 high: bars that stand on 1; of equal neighbours one line."""
        corners = [
            f"H{place}V{1 - height:.3g}"
            for place, height in enumerate(self.heights)
            if place == 0 or height != self.heights[place - 1]
        ]
        return f"M0 1{''.join(corners)}H{len(self.heights)}V1Z"


@dataclass(frozen=True)
class Timeline:
    """The lanes of the run at this index. seconds: the end."""

    index: int
    seconds: float
    bins: int
    lanes: list[Lane]


def timelines(runs: list[Run]) -> list[Timeline]:
    """Of the runs that recorded which worker made an update, and when."""
    found = []
    for index, run in enumerate(runs):
        if "worker" not in run.updates:
            continue
        known = np.isfinite(run.updates["worker"]) & np.isfinite(run.metrics["seconds"])
        if not known.any():
            continue
        workers, seconds = run.updates["worker"][known].astype(int), run.metrics["seconds"][known]
        end = float(seconds.max()) or 1.0
        of_each = {int(worker): seconds[workers == worker] for worker in np.unique(workers)}
        bins = min(MOST_BINS, max(FEWEST_BINS, len(seconds) // UPDATES_OF_BIN))
        counts = {worker: np.histogram(times, bins, (0, end))[0] for worker, times in of_each.items()}
        most = max(count.max() for count in counts.values())
        lanes = [
            Lane(f"worker {worker}", counts[worker] / most, _words(times, end)) for worker, times in of_each.items()
        ]
        found.append(Timeline(index, end, bins, lanes))
    return found


def _words(seconds: np.ndarray, end: float) -> str:
    pauses = np.diff(np.sort(seconds), prepend=0.0, append=end)
    return f"{len(seconds):,} updates, longest pause {pauses.max():.3g} s"


def above_usual(run: Run) -> list[tuple[str, int, float, float | None]]:
    """Of each staleness: how many updates, by how much their loss is above the mean of those around, and its error.

    The loss falls while a run trains, and staleness grows: what is compared is an update with its neighbours.
    """
    staleness = run.updates["staleness"]
    losses = run.metrics["loss"]
    known = np.isfinite(staleness) & np.isfinite(losses)
    staleness, losses = staleness[known].astype(int), losses[known]
    excess = losses - _usual(losses)
    groups = [(str(each), staleness == each) for each in np.unique(staleness)]
    if len(groups) > MOST_ROWS:
        first = int(groups[MOST_ROWS - 1][0])
        groups = [*groups[: MOST_ROWS - 1], (f"{first} to {staleness.max()}", staleness >= first)]
    return [(name, int(chosen.sum()), float(excess[chosen].mean()), _error(excess[chosen])) for name, chosen in groups]


def _usual(losses: np.ndarray) -> np.ndarray:
    """The mean of the updates around each, of itself too."""
    sums = np.concatenate([[0.0], np.cumsum(losses)])
    places = np.arange(len(losses))
    around = np.minimum(
        AROUND, np.minimum(places, len(losses) - 1 - places)
    )  # the same on both sides, against the trend
    means: np.ndarray = (sums[places + around + 1] - sums[places - around]) / (2 * around + 1)
    return means


def _error(values: np.ndarray) -> float | None:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None


def sections(runs: list[Run]) -> list[TableSection]:
    """A table of the loss against staleness, where updates have more than one."""
    rows = [
        [run.label, name, f"{count:,}", format_number(excess, "+.4f"), format_number(error, ".4f")]
        for run in runs
        if len(run.staleness) > 1 and "staleness" in run.updates
        for name, count, excess, error in above_usual(run)
    ]
    sentences = [
        f"The usual loss is the mean of the {AROUND} updates before and after; the batch decides most of the rest."
    ]
    return [TableSection("Loss against staleness", COLUMNS, rows, ("run", "staleness"), sentences)] if rows else []
