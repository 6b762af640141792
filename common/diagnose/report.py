"""A diagnosis on the terminal, as JSON and as a page."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from common.diagnose.findings import Check, Diagnosis, Stage
from common.diagnose.remedies import remedy_of

SHOWN = 12  # rows of a stage on the page


def headline(diagnosis: Diagnosis) -> str:
    """The result in one sentence."""
    a, b = diagnosis.titles["a"], diagnosis.titles["b"]
    if diagnosis.equal:
        return f"no difference: {a} and {b} are the same at every stage, in {diagnosis.precision}"
    first = diagnosis.first
    if first is None:
        return f"{a} and {b} differ, and no stage explains where it began"
    if not diagnosis.causes:
        worst = first.worst
        return f"{a} and {b} differ first at the stage {first.name}: {worst.tensor if worst else ''}"
    cause = diagnosis.causes[0]
    return f"{a} and {b} differ: {cause.sentence}" + ("" if cause.confirmed else " (not confirmed)")


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """The headline, all causes and what to do about them, and the ladder."""
    console = Console(soft_wrap=True, highlight=False)
    console.print(escape(headline(diagnosis)))
    for cause in diagnosis.causes:
        confirmed = "confirmed" if cause.confirmed else "not confirmed"
        console.print(escape(f"cause: {cause.cause}, {cause.stage}, {cause.tensor}: {cause.sentence} ({confirmed})"))
        if (remedy := remedy_of(cause)) is not None:
            console.print(escape(f"  what to do: {remedy}"))
    table = Table(box=None, pad_edge=False)
    for column in ("stage", "worst tensor", "difference", "noise", "verdict"):
        right, whole = column in ("difference", "noise"), column != "worst tensor"
        table.add_column(column, justify="right" if right else "left", no_wrap=whole, overflow="fold")
    for stage in diagnosis.stages:
        worst = stage.worst
        table.add_row(
            stage.name,
            escape(worst.tensor if worst else stage.note),
            _number(worst.difference) if worst else "",
            _number(worst.noise) if worst else "",
            stage.verdict,
        )
    console.print(table)
    console.print(f"compared in {diagnosis.precision}")
    for stage in diagnosis.stages:
        if stage.checks and stage.note:
            console.print(escape(f"{stage.name}: {stage.note}"))
    for name in diagnosis.unpaired:
        console.print(escape(f"not paired: {name}"))


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """The content of diagnosis.json."""
    first = diagnosis.first
    return {
        "equal": diagnosis.equal,
        "sides": diagnosis.titles,
        "precision": diagnosis.precision,
        "headline": headline(diagnosis),
        "first": {"stage": first.name, "tensor": first.worst.tensor if first.worst else None} if first else None,
        "causes": [vars(each) for each in diagnosis.causes],
        "ladder": [_row(stage) for stage in diagnosis.stages],
        "unpaired": list(diagnosis.unpaired),
    }


def write_diagnosis(diagnosis: Diagnosis, output: Path) -> list[Path]:
    """Write diagnosis.json and diagnosis.html. Returns their paths."""
    paths = [output / "diagnosis.html", output / "diagnosis.json"]
    environment = Environment(loader=PackageLoader("common.diagnose", ""), autoescape=select_autoescape(default=True))
    page = environment.get_template("diagnosis.html.j2")
    stages = [(stage, sorted(stage.checks, key=_weight)[:SHOWN]) for stage in diagnosis.stages]
    paths[0].write_text(
        page.render(
            diagnosis=diagnosis,
            headline=headline(diagnosis),
            stages=stages,
            number=_number,
            shade=_shade,
            row=_row,
            outline=_outline,
            remedy_of=remedy_of,
        )
    )
    paths[1].write_text(json.dumps(as_json(diagnosis), indent=1) + "\n")
    return paths


def _row(stage: Stage) -> dict[str, Any]:
    worst = stage.worst
    return {
        "stage": stage.name,
        "tensor": worst.tensor if worst else None,
        "difference": _finite(worst.difference) if worst else None,
        "noise": worst.noise if worst else None,
        "verdict": stage.verdict,
        "note": stage.note,
    }


def _outline(counts: Sequence[int], most: int) -> str:
    """The path of a histogram in a picture of 100 by 100. most: the count that is as high as the picture."""
    width = 100 / len(counts)
    return "M0,100 " + " ".join(f"V{100 - 100 * each / most:.1f} h{width:g}" for each in counts) + " V100 Z"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "inf"
    return "0" if value == 0 else f"{value:.1e}"


def _weight(check: Check) -> tuple[bool, float]:
    return not (check.differs and check.culprit), -check.difference


def _shade(check: Check) -> float:
    """From 0 for what rounding explains to 1 for a difference as large as the tensor."""
    if not check.differs:
        return 0.0
    if not math.isfinite(check.difference):
        return 1.0
    low, high = math.log10(min(check.tolerance, 0.5)), 0.0
    return min(1.0, max(0.15, (math.log10(check.difference) - low) / (high - low)))
