"""Tables of a comparison, for the terminal, the page and Markdown: runs, pairs, asynchronous runs.

The reference is the run that the others are compared with. Staleness is the number of updates that other workers
applied between a worker's read of the parameters and its own update.
"""

from common.compare.measures import (
    FINAL_SHARE,
    ReferenceDifference,
    compare_with_reference,
    compute_mean_staleness,
    compute_metric_difference,
    compute_speed_ratio,
)
from common.compare.pair import RunPair
from common.compare.runs import Run, list_evaluated_metrics
from common.report.formats import TableSection, format_memory, format_number
from common.report.worker_updates import NEIGHBOURS, compute_excess_losses

RUN_TEXT_COLUMNS = ("run", "status", "precision")
RUN_COLUMNS = [*RUN_TEXT_COLUMNS, "steps", "final loss", "accuracy"]
RUN_COLUMNS += ["examples/s", "tokens/s", "speed", "peak memory / replica"]
PAIR_TEXT_COLUMNS = ("run a", "run b", "verdict")
PAIR_COLUMNS = [*PAIR_TEXT_COLUMNS, "steps", "max Δ loss", "max Δ grad_norm", "exceeded at"]
PAIR_COLUMNS += ["Δ eval loss", "Δ accuracy"]
ASYNCHRONOUS_COLUMNS = ["run", "updates", "examples", "mean staleness", "largest", "updates of each staleness"]
ASYNCHRONOUS_COLUMNS += ["Δ final loss", "Δ eval loss", "Δ accuracy"]
STALENESS_COLUMNS = ["run", "staleness", "updates", "loss above the usual", "standard error"]


def build_run_table(runs: list[Run], reference: Run) -> TableSection:
    """Return the table of all runs."""
    rows = [build_run_cells(run, reference) for run in runs]
    return TableSection("Runs", RUN_COLUMNS, rows, RUN_TEXT_COLUMNS, minor=RUN_TEXT_COLUMNS[1:])


def build_run_cells(run: Run, reference: Run) -> list[str]:
    """Return one row under RUN_COLUMNS. The speed is a multiple of the reference's examples/s."""
    summary = run.summary
    ratio = compute_speed_ratio(run, reference)
    return [
        run.label,
        summary["status"],
        run.precision,
        str(len(run.steps)),
        format_number(summary.get("final_loss"), ".6f"),
        format_number(summary.get("accuracy"), ".2%"),
        format_number(summary.get("examples_per_second"), ",.1f"),
        format_number(summary.get("tokens_per_second") or None, ",.0f"),  # 0 for images, which have no tokens
        "-" if ratio is None else f"{ratio:.2f}x",
        format_memory(summary.get("peak_memory_bytes") or []),
    ]


def build_metric_tables(runs: list[Run], reference: Run) -> list[TableSection]:
    """Return a table of the metrics of the last evaluations; none if there is no metric besides the accuracy."""
    metrics = list_evaluated_metrics(runs)
    if not {*metrics} - {"accuracy"}:
        return []
    columns = ["run", *(name.replace("_", " ") for name in metrics)]
    rows = [[run.label, *(_format_metric(run, reference, name) for name in metrics)] for run in runs]
    sentence = f"Last evaluation; in brackets the difference from {reference} after equal numbers of examples."
    return [TableSection("Validation metrics", columns, rows, sentences=[sentence])]


def _format_metric(run: Run, reference: Run, name: str) -> str:
    if not run.has_evaluation(name):
        return "-"
    value = format_number(float(run.evals[name][-1]), ".6g")
    difference = None if run is reference else compute_metric_difference(run, reference, name)
    return value if difference is None else f"{value} ({format_number(difference, '+.2g')})"


def build_pair_cells(pair: RunPair) -> list[str]:
    """Return one row under PAIR_COLUMNS. The largest differences come with the steps at which they occur."""
    return [
        pair.a.label,
        pair.b.label,
        pair.verdict,
        "-" if pair.asynchronous else str(pair.steps),
        _format_difference(pair.max_loss_difference, pair.max_loss_difference_step),
        _format_difference(pair.max_grad_norm_difference, pair.max_grad_norm_difference_step),
        format_number(pair.first_step_beyond, "d"),
        format_number(pair.evaluation_loss_difference, ".2e"),
        format_number(pair.accuracy_difference, ".2%"),
    ]


def _format_difference(difference: float | None, step: int | None) -> str:
    return "-" if difference is None else f"{format_number(difference, '.2e')} at {step}"


def build_asynchronous_tables(runs: list[Run], reference: Run) -> list[TableSection]:
    """Return a table of the asynchronous runs; none if there are no such runs."""
    rows = [_build_asynchronous_cells(run, reference) for run in runs if run.is_asynchronous]
    if not rows:
        return []
    share = f"{FINAL_SHARE:.0%}"
    sentence = f"Δ is run − {reference}, signed. Final loss: mean over the last {share} of the examples both consumed."  # noqa: RUF001  a minus sign
    return [
        TableSection("Asynchronous runs", ASYNCHRONOUS_COLUMNS, rows, ("run", "updates of each staleness"), [sentence])
    ]


def _build_asynchronous_cells(run: Run, reference: Run) -> list[str]:
    no_difference = ReferenceDifference(None, None, None)
    difference = no_difference if run is reference else compare_with_reference(run, reference)
    return [
        run.label,
        str(len(run.steps)),
        f"{run.metrics['examples'][-1]:.0f}" if len(run.steps) else "0",
        format_number(compute_mean_staleness(run), ".2f"),
        str(max(run.staleness, default="-")),
        "  ".join(f"{staleness}: {count}" for staleness, count in run.staleness.items()),
        format_number(difference.loss, "+.4f"),
        format_number(difference.evaluation_loss, "+.4f"),
        format_number(difference.accuracy, "+.2%"),
    ]


def build_staleness_tables(runs: list[Run]) -> list[TableSection]:
    """Return a table of the loss by staleness; none if no run has updates of different staleness."""
    rows = [
        [
            run.label,
            excess.staleness,
            f"{excess.updates:,}",
            format_number(excess.loss, "+.4f"),
            format_number(excess.standard_error, ".4f"),
        ]
        for run in runs
        if len(run.staleness) > 1 and "staleness" in run.updates
        for excess in compute_excess_losses(run)
    ]
    sentence = (
        f"The usual loss is the mean of the {NEIGHBOURS} updates before and after; the batch decides most of the rest."
    )
    if not rows:
        return []
    return [TableSection("Loss against staleness", STALENESS_COLUMNS, rows, ("run", "staleness"), [sentence])]
