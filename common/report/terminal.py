"""Tables and the verdict of a comparison on a terminal."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.compare.explain import explain_verdict
from common.compare.pair import DIVERGED, LOCKSTEP, RunPair
from common.compare.verdict import Comparison
from common.report.answers import list_next_steps
from common.report.formats import TableSection
from common.report.seed_tables import build_seed_tables
from common.report.tables import (
    PAIR_COLUMNS,
    PAIR_TEXT_COLUMNS,
    build_asynchronous_tables,
    build_metric_tables,
    build_pair_cells,
    build_run_table,
)
from common.report.traffic_tables import build_traffic_tables
from common.statistics.verdicts import DIFFERENT, EQUIVALENT
from common.terminal import SafeConsole

STYLES = {LOCKSTEP: "green", EQUIVALENT: "green", DIVERGED: "red", DIFFERENT: "red"}
PLAIN_WIDTH = 160  # characters in a line of output that is not a terminal
MIN_TEXT_WIDTH = 20  # characters; a column of text is not folded to a smaller width
GAP = 2  # characters between columns
MAX_PAIRS, MAX_NOTES = 10, 20  # largest numbers of pairs and notes on a terminal; the report has all of them


def print_comparison(comparison: Comparison) -> None:
    """Print the tables of the runs and the pairs, the notes, and the verdict."""
    console = SafeConsole(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console = SafeConsole(highlight=False, markup=False, soft_wrap=True, width=PLAIN_WIDTH)
    for section in build_tables(comparison):
        widths = _fit_columns(section, console.width)
        console.print(_build_rich_table(section, widths))
        if left_out := [name for name in section.columns if name not in widths]:
            console.print(f"(no room for {', '.join(left_out)}; report.html shows them)", style="dim")
        for sentence in section.sentences:
            console.print(sentence)
        console.print()
    _print_notes(console, comparison)
    for next_step in list_next_steps(comparison)[:1]:
        console.print(f"to find out why: {next_step}")
    console.print(comparison.sentence, style=f"bold {STYLES.get(comparison.headline, 'yellow')}")


def _print_notes(console: Console, comparison: Comparison) -> None:
    pairs = [] if comparison.group_comparisons else _select_pairs(comparison)
    reasons = [
        f"{pair.a} and {pair.b}: {reason}"
        for pair in pairs
        if explain_verdict(pair) not in comparison.sentence
        for reason in (pair.reasons[1:] if pair.asynchronous else pair.reasons)  # the verdict names asynchronous runs
    ]
    notes = reasons + comparison.notes
    for note in notes[:MAX_NOTES]:
        console.print(f"note: {note}")
    if len(notes) > MAX_NOTES:
        console.print(f"note: {len(notes) - MAX_NOTES} more notes are in report.html")
    if notes:
        console.print()


def build_tables(comparison: Comparison) -> list[TableSection]:
    """Return the tables of a comparison: runs and, if there are any, pairs, asynchronous runs and traffic.

    Groups of seeds have tables of their own instead of the table of pairs.
    """
    reference = comparison.reference
    tables = [build_run_table(comparison.runs, reference), *build_metric_tables(comparison.runs, reference)]
    if comparison.group_comparisons:
        tables += build_seed_tables(comparison)
    elif comparison.pairs:
        pairs = _select_pairs(comparison)
        others = len(comparison.pairs) - len(pairs)
        sentences = [f"The pairs with {reference}; {others} other pairs are in report.html."] if others else []
        rows = [build_pair_cells(pair) for pair in pairs]
        tables.append(TableSection("Pairs", PAIR_COLUMNS, rows, PAIR_TEXT_COLUMNS, sentences))
    return tables + build_asynchronous_tables(comparison.runs, reference) + build_traffic_tables(comparison.runs)


def _select_pairs(comparison: Comparison) -> list[RunPair]:
    """Return all pairs; if there are too many, only the pairs with the reference."""
    if len(comparison.pairs) <= MAX_PAIRS:
        return comparison.pairs
    return [pair for pair in comparison.pairs if comparison.reference in (pair.a, pair.b)]


def _fit_columns(section: TableSection, width: int) -> dict[str, int]:
    """Return the columns that fit into a line of this width, with their widths in characters.

    Text may be folded between words, numbers may not. If that is not enough, columns are left out: first the minor
    columns, then the last columns. Free space goes to columns of text first, beginning with the one that needs least.
    """
    cells = {name: [row[index] for row in section.rows] for index, name in enumerate(section.columns)}
    full_widths = {name: max(map(len, (name, *column))) for name, column in cells.items()}
    if _sum_widths(full_widths.values()) <= width:
        return full_widths
    widths = {
        name: min(MIN_TEXT_WIDTH, max(map(len, " ".join((name, *column)).split())))
        if name in section.text
        else max(map(len, (*name.split(), *column)))
        for name, column in cells.items()
    }
    for name in (*section.minor, *reversed(section.columns[1:])):
        if name in widths and _sum_widths(widths.values()) > width:
            del widths[name]
    for name in sorted(widths, key=lambda name: (name not in section.text, full_widths[name] - widths[name])):
        widths[name] += max(0, min(full_widths[name] - widths[name], width - _sum_widths(widths.values())))
    return widths


def _sum_widths(widths: Iterable[int]) -> int:
    """Return the width of a line: the columns and the gaps between them."""
    widths = list(widths)
    return sum(widths) + GAP * (len(widths) - 1)


def _build_rich_table(section: TableSection, widths: dict[str, int]) -> Table:
    table = Table(
        title=section.title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, GAP, 0, 0)
    )
    for name, width in widths.items():
        is_text = name in section.text
        table.add_column(name, justify="left" if is_text else "right", width=width, overflow="fold", header_style="dim")
    for row in section.rows:
        cells = (cell for name, cell in zip(section.columns, row, strict=True) if name in widths)
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in cells))
    return table
