"""The report of a diagnosis: on the terminal, as diagnosis.html and as diagnosis.json.

A diagnosis consists of stages, such as "gradients". A stage has a check for each tensor that it compares, and the
causes of the differences that begin at it.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, select_autoescape
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from common.diagnose.diagnosis import CauseRow, Diagnosis, write_diagnosis
from common.diagnose.findings import Stage, TensorCheck
from common.diagnose.remedies import find_remedy
from common.terminal import SafeConsole

MOST_NAMES = 5  # largest number of tensors that a line names
ROWS_PER_STAGE = 12  # largest number of checks that the page lists for a stage


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """Print the headline, all causes with their remedies, and the stages."""
    console = SafeConsole(soft_wrap=True, highlight=False)
    console.print(escape(diagnosis.headline))
    for row in diagnosis.cause_rows:
        _print_row(console, row)
    console.print(_draw_table(diagnosis.stages))
    console.print(f"compared in {diagnosis.precision}")
    for stage in diagnosis.stages:
        if stage.checks and stage.note:
            console.print(escape(f"{stage.name}: {stage.note}"))
    for note in diagnosis.notes:
        console.print(escape(f"note: {note}"))
    if diagnosis.unpaired:
        console.print(escape(f"not paired: {_list_names(diagnosis.unpaired)}"))


def write_report(diagnosis: Diagnosis, output: Path) -> list[Path]:
    """Write diagnosis.html and diagnosis.json. Return their paths."""
    environment = Environment(loader=PackageLoader("common.diagnose", ""), autoescape=select_autoescape(default=True))
    page = environment.get_template("diagnosis.html.j2").render(
        diagnosis=diagnosis,
        stages=[(stage, sorted(stage.checks, key=_sort_key)[:ROWS_PER_STAGE]) for stage in diagnosis.stages],
        format_number=_format_number,
        opacity=_opacity,
        draw_histogram=_draw_histogram,
        find_remedy=find_remedy,
        list_names=_list_names,
    )
    paths = [output / "diagnosis.html", output / "diagnosis.json"]
    paths[0].write_text(page)
    write_diagnosis(diagnosis, paths[1])
    return paths


def _print_row(console: Console, row: CauseRow) -> None:
    cause, confirmed = row.cause, "confirmed" if row.cause.confirmed else "not confirmed"
    tensor = "" if row.sentence.startswith(f"{cause.tensor}: ") else f" {cause.tensor}:"
    console.print(escape(f"cause: {cause.cause}, {cause.stage},{tensor} {row.sentence} ({confirmed})"))
    if row.other_tensors:
        console.print(escape(f"  also: {_list_names(row.other_tensors)}"))
    if (remedy := find_remedy(cause)) is not None:
        console.print(escape(f"  what to do: {remedy}"))


def _list_names(names: Sequence[str]) -> str:
    count = len(names) - MOST_NAMES
    rest = f" and {count} more (see diagnosis.json)" if count > 0 else ""
    return f"{', '.join(names[:MOST_NAMES])}{rest}"


def _draw_table(stages: Sequence[Stage]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("stage", "worst tensor", "difference", "noise", "verdict"):
        is_number, may_wrap = column in ("difference", "noise"), column == "worst tensor"
        table.add_column(column, justify="right" if is_number else "left", no_wrap=not may_wrap, overflow="fold")
    for stage in stages:
        worst = stage.worst_check
        table.add_row(
            stage.name,
            escape(worst.tensor if worst else stage.note),
            _format_number(worst.difference) if worst else "",
            _format_number(worst.noise) if worst else "",
            stage.verdict,
        )
    return table


def _draw_histogram(counts: Sequence[int], highest: int) -> str:
    """Return the SVG path of a histogram in a picture of 100 by 100. A bin of `highest` elements fills the height."""
    width = 100 / len(counts)
    return "M0,100 " + " ".join(f"V{100 - 100 * count / highest:.1f} h{width:g}" for count in counts) + " V100 Z"


def _format_number(value: float) -> str:
    if not math.isfinite(value):
        return "inf"
    return "0" if value == 0 else f"{value:.1e}"


def _sort_key(check: TensorCheck) -> tuple[bool, float]:
    """Sort differences that begin at the stage first, and larger ones before smaller ones."""
    return not check.begins_here, -check.difference


def _opacity(check: TensorCheck) -> float:
    """Return the opacity of a check's square: 0 if rounding explains the difference, 1 if it is as large as the tensor.

    Between the tolerance and the norm of the tensor the opacity grows with the logarithm of the difference.
    """
    if not check.differs:
        return 0.0
    if not math.isfinite(check.difference):
        return 1.0
    lowest = math.log10(min(check.tolerance, 0.5))
    return min(1.0, max(0.15, 1 - math.log10(check.difference) / lowest))
