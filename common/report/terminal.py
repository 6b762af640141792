"""Prints a comparison as tables on a terminal."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.compare.pair import DIVERGED, LOCKSTEP, RunPair, explain
from common.compare.runs import Run
from common.compare.verdict import Comparison
from common.report import staleness, traffic
from common.report.answers import diagnoses
from common.report.formats import TableSection, format_memory, format_number

STYLES = {LOCKSTEP: "green", DIVERGED: "red"}
PLAIN_WIDTH = 160  # of output that is not a terminal
NARROWEST = 20  # to which a column of text may be folded
GAP = 2  # between columns
MOST_PAIRS, MOST_NOTES = 10, 20  # shown on a terminal; the report has all


def print_comparison(comparison: Comparison) -> None:
    """Print tables of runs and of pairs, the notes, and the verdict."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, soft_wrap=True, width=PLAIN_WIDTH)
    for section in sections(comparison):
        kept = _columns_that_fit(section, console.width)
        console.print(_table(section, kept))
        if left_out := [name for name in section.columns if name not in kept]:
            console.print(f"(no room for {', '.join(left_out)}: see report.html)", style="dim")
        for sentence in section.sentences:
            console.print(sentence)
        console.print()
    lines = [
        f"{pair.a} and {pair.b}: {reason}"
        for pair in _shown(comparison)
        if explain(pair) not in comparison.sentence
        for reason in (pair.reasons[1:] if pair.asynchronous else pair.reasons)  # the verdict names them
    ]
    notes = lines + comparison.notes
    for line in notes[:MOST_NOTES]:
        console.print(f"note: {line}")
    if len(notes) > MOST_NOTES:
        console.print(f"note: {len(notes) - MOST_NOTES} more notes are in report.html")
    if notes:
        console.print()
    for command in diagnoses(comparison)[:1]:
        console.print(f"to find out why: {command}")
    console.print(comparison.sentence, style=f"bold {STYLES.get(comparison.verdict, 'yellow')}")


def sections(comparison: Comparison) -> list[TableSection]:
    """The tables of a comparison; those of pairs, staleness and traffic where there are any."""
    reference = comparison.reference
    runs = [run_cells(run, reference) for run in comparison.runs]
    of_text = ("run", "status", "precision")
    found = [TableSection("Runs", RUN_COLUMNS, runs, of_text, minor=of_text[1:])]
    if comparison.pairs:
        shown = _shown(comparison)
        others = len(comparison.pairs) - len(shown)
        sentences = [f"The pairs with {reference}; {others} other pairs are in report.html."] if others else []
        pairs = [pair_cells(pair) for pair in shown]
        found.append(TableSection("Pairs", PAIR_COLUMNS, pairs, ("run a", "run b", "verdict"), sentences))
    return found + staleness.sections(comparison.runs, reference) + traffic.sections(comparison.runs)


def _shown(comparison: Comparison) -> list[RunPair]:
    """All pairs, or, of many, those with the reference."""
    if len(comparison.pairs) <= MOST_PAIRS:
        return comparison.pairs
    return [pair for pair in comparison.pairs if comparison.reference in (pair.a, pair.b)]


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
        format_number(summary.get("final_loss"), ".6f"),
        format_number(summary.get("accuracy"), ".2%"),
        format_number(summary.get("examples_per_second"), ",.1f"),
        format_number(summary.get("tokens_per_second") or None, ",.0f"),  # images have none
        "-" if ratio is None else f"{ratio:.2f}x",
        format_memory(summary.get("peak_memory_bytes") or []),
    ]


def pair_cells(pair: RunPair) -> list[str]:
    """One row under PAIR_COLUMNS; the largest differences with the steps at which they occur."""
    return [
        pair.a.label,
        pair.b.label,
        pair.verdict,
        "-" if pair.asynchronous else str(pair.steps),
        _at(pair.max_loss_difference, pair.max_loss_difference_step),
        _at(pair.max_grad_norm_difference, pair.max_grad_norm_difference_step),
        format_number(pair.first_step_beyond, "d"),
        format_number(pair.evaluation_loss_difference, ".2e"),
        format_number(pair.accuracy_difference, ".2%"),
    ]


def speed_ratio(run: Run, reference: Run) -> float | None:
    """Examples per second as a multiple of the reference's; None where either is unknown."""
    speeds = run.summary.get("examples_per_second"), reference.summary.get("examples_per_second")
    return speeds[0] / speeds[1] if speeds[0] is not None and speeds[1] else None


def _at(difference: float | None, step: int | None) -> str:
    return "-" if difference is None else f"{format_number(difference, '.2e')} at {step}"


def _columns_that_fit(section: TableSection, width: int) -> dict[str, int]:
    """The columns for which there is room, and their widths: words of text and numbers stay whole."""
    cells = {name: [row[index] for row in section.rows] for index, name in enumerate(section.columns)}
    natural = {name: max(map(len, (name, *column))) for name, column in cells.items()}
    if _total(natural.values()) <= width:
        return natural
    widths = {
        name: min(NARROWEST, max(map(len, " ".join((name, *column)).split())))
        if name in section.text
        else max(map(len, (*name.split(), *column)))
        for name, column in cells.items()
    }
    for name in (*section.minor, *reversed(section.columns[1:])):
        if name in widths and _total(widths.values()) > width:
            del widths[name]
    for name in sorted(widths, key=lambda name: (name not in section.text, natural[name] - widths[name])):
        widths[name] += max(0, min(natural[name] - widths[name], width - _total(widths.values())))
    return widths


def _total(widths: Iterable[int]) -> int:
    widths = list(widths)
    return sum(widths) + GAP * (len(widths) - 1)


def _table(section: TableSection, columns: dict[str, int]) -> Table:
    table = Table(
        title=section.title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, GAP, 0, 0)
    )
    for name, width in columns.items():
        text = name in section.text
        table.add_column(name, justify="left" if text else "right", width=width, overflow="fold", header_style="dim")
    for row in section.rows:
        cells = (cell for name, cell in zip(section.columns, row, strict=True) if name in columns)
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in cells))
    return table
