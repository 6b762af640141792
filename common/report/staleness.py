"""Asynchronous runs: the staleness of their updates, and their difference from the reference at equal examples."""

from dataclasses import dataclass

import numpy as np

from common.compare.runs import Run
from common.report.formats import TableSection, format_number

SHARE = 0.1  # of the examples; the final training loss is the mean over it, since the loss of one update is noisy
COLUMNS = ["run", "updates", "examples", "mean staleness", "largest", "updates of each staleness"]
COLUMNS += ["Δ final loss", "Δ eval loss", "Δ accuracy"]


@dataclass(frozen=True)
class Difference:
    """A run's values minus the reference's; None where either has no value.

    loss: training loss, the mean over the last tenth of the examples that both consumed. evaluation_loss and accuracy:
    at the last evaluation that both made after the same number of examples.
    """

    loss: float | None
    evaluation_loss: float | None
    accuracy: float | None


def difference(run: Run, reference: Run) -> Difference:
    """A run's values minus the reference's, after the same number of examples."""
    common, i, j = np.intersect1d(run.evals["examples"], reference.evals["examples"], return_indices=True)
    loss, accuracy = (
        float((run.evals[key][i] - reference.evals[key][j])[-1])
        if len(common) and run.evaluated(key) and reference.evaluated(key)
        else None
        for key in ("loss", "accuracy")
    )
    if not (len(run.steps) and len(reference.steps)):
        return Difference(None, loss, accuracy)
    end = min(run.metrics["examples"][-1], reference.metrics["examples"][-1])
    return Difference(_final_loss(run, end) - _final_loss(reference, end), loss, accuracy)


def mean(run: Run) -> float | None:
    """The mean staleness over all updates; None where the run did not record it."""
    updates = sum(run.staleness.values())
    return sum(staleness * count for staleness, count in run.staleness.items()) / updates if updates else None


def sections(runs: list[Run], reference: Run) -> list[TableSection]:
    """A table of the asynchronous runs, where there are any."""
    rows = [_cells(run, reference) for run in runs if run.asynchronous]
    sentences = [
        f"Δ is run − {reference}, signed. Final loss: mean over the last {SHARE:.0%} of the examples both consumed."
    ]
    return [TableSection("Asynchronous runs", COLUMNS, rows, ("run", COLUMNS[5]), sentences)] if rows else []


def _cells(run: Run, reference: Run) -> list[str]:
    found = difference(run, reference) if run is not reference else Difference(None, None, None)
    return [
        run.label,
        str(len(run.steps)),
        f"{run.metrics['examples'][-1]:.0f}" if len(run.steps) else "0",
        format_number(mean(run), ".2f"),
        str(max(run.staleness, default="-")),
        "  ".join(f"{staleness}: {count}" for staleness, count in run.staleness.items()),
        format_number(found.loss, "+.4f"),
        format_number(found.evaluation_loss, "+.4f"),
        format_number(found.accuracy, "+.2%"),
    ]


def _final_loss(run: Run, end: float) -> float:
    """Mean training loss of the updates in the last SHARE of the first `end` examples."""
    examples = run.metrics["examples"]
    sizes = np.diff(examples, prepend=0)
    last = (examples > (1 - SHARE) * end) & (examples <= end)
    return float(np.average(run.metrics["loss"][last], weights=sizes[last]))
