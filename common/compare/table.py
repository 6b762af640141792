"""The comparison as tables on a terminal."""

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from common.compare.runs import Run
from common.compare.verdict import DIVERGED, LOCKSTEP, Comparison, Pair

STYLES = {LOCKSTEP: "green", DIVERGED: "red"}
PLAIN_WIDTH = 160  # of output that is not a terminal: every column fits


def print_comparison(comparison: Comparison) -> None:
    """Tables of runs and of pairs, what was noticed, and the verdict."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, soft_wrap=True, width=PLAIN_WIDTH)
    console.print(_table("Runs", RUN_COLUMNS, [run_cells(run, comparison.reference) for run in comparison.runs]))
    if comparison.pairs:
        console.print()
        console.print(_table("Pairs", PAIR_COLUMNS, [pair_cells(pair) for pair in comparison.pairs]))
    lines = [f"{pair.a} and {pair.b}: {reason}" for pair in comparison.pairs for reason in pair.reasons]
    if lines + comparison.notes:
        console.print()
    for line in lines + comparison.notes:
        console.print(f"note: {line}")
    console.print()
    console.print(comparison.sentence, style=f"bold {STYLES.get(comparison.verdict, 'yellow')}")


RUN_COLUMNS = ["run", "status", "precision", "steps", "final loss", "accuracy"]
RUN_COLUMNS += ["examples/s", "tokens/s", "speed", "peak memory / replica"]
PAIR_COLUMNS = ["run a", "run b", "verdict", "steps", "max Δ loss", "max Δ grad_norm", "beyond at"]
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
    """One row under PAIR_COLUMNS; the largest differences with the step they occur at."""
    return [
        pair.a.label,
        pair.b.label,
        pair.verdict,
        str(pair.steps),
        _at(pair.max_loss_difference, pair.max_loss_difference_step),
        _at(pair.max_grad_norm_difference, pair.max_grad_norm_difference_step),
        number(pair.first_step_beyond, "d"),
        number(pair.evaluation_loss_difference, ".2e"),
        number(pair.accuracy_difference, ".2%"),
    ]


def number(value: float | None, form: str) -> str:
    """`value` formatted, "-" for None, "not finite" for NaN and infinities."""
    if value is None:
        return "-"
    return format(value, form) if math.isfinite(value) else "not finite"


def memory(peaks: Sequence[float | None]) -> str:
    """Peak bytes of each replica, in MiB: "412 MiB", "412, 398 MiB"."""
    mib = ["-" if peak is None else f"{peak / 2**20:,.0f}" for peak in peaks]
    return f"{', '.join(mib)} MiB" if mib else "-"


def speed_ratio(run: Run, reference: Run) -> float | None:
    """Examples per second as a multiple of the reference's; None where either is unknown."""
    speeds = run.summary.get("examples_per_second"), reference.summary.get("examples_per_second")
    return speeds[0] / speeds[1] if speeds[0] is not None and speeds[1] else None


def words(value: Any) -> str:
    """A value of summary.json's `versions` or `hardware`, or of a config, for people: "torch 2.13.0, python 3.11"."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {words(entry)}" for key, entry in value.items())
    if isinstance(value, list):
        return ", ".join(words(entry) for entry in value)
    return "null" if value is None else str(value)


def _at(difference: float | None, step: int | None) -> str:
    return "-" if difference is None else f"{number(difference, '.2e')} at {step}"


def _table(title: str, columns: Sequence[str], rows: list[list[str]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        text = column in ("run", "run a", "run b", "verdict", "status", "precision")
        table.add_column(column, justify="left" if text else "right", overflow="fold", header_style="dim")
    for row in rows:
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    return table
