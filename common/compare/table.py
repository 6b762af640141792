"""Prints a comparison as tables on a terminal."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.compare import staleness, traffic
from common.compare.formats import Section, memory, number
from common.compare.pair import DIVERGED, LOCKSTEP, Pair
from common.compare.runs import Run
from common.compare.verdict import Comparison

STYLES = {LOCKSTEP: "green", DIVERGED: "red"}
PLAIN_WIDTH = 160  # of output that is not a terminal; every column fits


def print_comparison(comparison: Comparison) -> None:
    """Print tables of runs and of pairs, the notes, and the verdict."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, soft_wrap=True, width=PLAIN_WIDTH)
    for section in sections(comparison):
        console.print(_table(section))
        for sentence in section.sentences:
            console.print(sentence)
        console.print()
    lines = [
        f"{pair.a} and {pair.b}: {reason}"
        for pair in comparison.pairs
        for reason in (pair.reasons[1:] if pair.asynchronous else pair.reasons)  # the verdict names them
    ]
    for line in lines + comparison.notes:
        console.print(f"note: {line}")
    if lines + comparison.notes:
        console.print()
    console.print(comparison.sentence, style=f"bold {STYLES.get(comparison.verdict, 'yellow')}")


def sections(comparison: Comparison) -> list[Section]:
    """The tables of a comparison; those of pairs, staleness and traffic where there are any."""
    reference = comparison.reference
    runs = [run_cells(run, reference) for run in comparison.runs]
    found = [Section("Runs", RUN_COLUMNS, runs, ("run", "status", "precision"))]
    if comparison.pairs:
        pairs = [pair_cells(pair) for pair in comparison.pairs]
        found.append(Section("Pairs", PAIR_COLUMNS, pairs, ("run a", "run b", "verdict")))
    return found + staleness.sections(comparison.runs, reference) + traffic.sections(comparison.runs)


RUN_COLUMNS = ["run", "status", "precision", "steps", "final loss", "accuracy"]
RUN_COLUMNS += ["examples/s", "tokens/s", "speed", "peak memory / replica"]
PAIR_COLUMNS = ["run a", "run b", "verdict", "steps", "max Δ loss", "max Δ grad_norm", "exceeded at"]
PAIR_COLUMNS += ["Δ eval loss", "Δ accuracy"]


def run_cells(run: Run, reference: Run) -> list[str]:
    """One row under RUN_COLUMNS; speed is examples/s as a multiple of the reference's."""
    summary = run.summary
    ratio = speed_ratio(run, reference)
    return [
        run.label,
        summary["status"],
        run.precision,
        str(len(run.steps)),
        number(summary.get("final_loss"), ".6f"),
        number(summary.get("accuracy"), ".2%"),
        number(summary.get("examples_per_second"), ",.1f"),
        number(summary.get("tokens_per_second"), ",.0f"),
        "-" if ratio is None else f"{ratio:.2f}x",
        memory(summary.get("peak_memory_bytes") or []),
    ]


def pair_cells(pair: Pair) -> list[str]:
    """One row under PAIR_COLUMNS; the largest differences with the steps at which they occur."""
    return [
        pair.a.label,
        pair.b.label,
        pair.verdict,
        "-" if pair.asynchronous else str(pair.steps),
        _at(pair.max_loss_difference, pair.max_loss_difference_step),
        _at(pair.max_grad_norm_difference, pair.max_grad_norm_difference_step),
        number(pair.first_step_beyond, "d"),
        number(pair.evaluation_loss_difference, ".2e"),
        number(pair.accuracy_difference, ".2%"),
    ]


def speed_ratio(run: Run, reference: Run) -> float | None:
    """Examples per second as a multiple of the reference's; None where either is unknown."""
    speeds = run.summary.get("examples_per_second"), reference.summary.get("examples_per_second")
    return speeds[0] / speeds[1] if speeds[0] is not None and speeds[1] else None


def _at(difference: float | None, step: int | None) -> str:
    return "-" if difference is None else f"{number(difference, '.2e')} at {step}"


def _table(section: Section) -> Table:
    table = Table(
        title=section.title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for column in section.columns:
        text = column in section.text
        table.add_column(column, justify="left" if text else "right", overflow="fold", header_style="dim")
    for row in section.rows:
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    return table
