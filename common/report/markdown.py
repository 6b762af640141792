"""The comparison as Markdown, for a pull request: verdict, answers, tables."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from common.compare.pair import DIVERGED, LOCKSTEP, OTHER_CURVE, SAME_CURVE
from common.compare.verdict import Comparison
from common.report.answers import answers, with_reference
from common.report.differences import what_differs
from common.report.json_report import write_text
from common.report.terminal import PAIR_COLUMNS, RUN_COLUMNS, pair_cells, run_cells

SIGNS = {LOCKSTEP: "✅", SAME_CURVE: "✅", DIVERGED: "❌", OTHER_CURVE: "❌"}
MOST_NOTES, MOST_LETTERS = 10, 600
PICTURE = "loss.png"


def write_markdown(comparison: Comparison, directory: Path, pictures: Sequence[Path] = ()) -> Path:
    """Write report.md into `directory`, made if missing; return its absolute path. pictures: of which it shows one."""
    shown = [path for path in pictures if path.name == PICTURE]
    links = [quote(os.path.relpath(path, directory.resolve())) for path in shown]
    return write_text(directory, "report.md", render_markdown(comparison, links))


def render_markdown(comparison: Comparison, links: Sequence[str] = ()) -> str:
    """The verdict first; then the answers, the runs, the pairs with the reference, and the settings that differ.

    links: to pictures.
    """
    reference = comparison.reference
    parts = [f"**{SIGNS.get(comparison.verdict, '⚠️')} {_text(comparison.sentence)}**"]
    found = answers(comparison)
    if found:
        parts.append("".join(f"- {each.question} **{_text(each.short)}**\n" for each in found).rstrip())
    parts += [f"![The loss of each run]({link})" for link in links]
    parts.append(_table(RUN_COLUMNS, (run_cells(run, reference) for run in comparison.runs)))
    if comparison.pairs:
        parts.append(_table(PAIR_COLUMNS, (pair_cells(pair) for _, pair in with_reference(comparison))))
    differences = what_differs(comparison)
    if differences.curve:
        parts.append("May change the curve:")
        parts.append("".join(f"- {_text(each.words)} (`{each.key}`)\n" for each in differences.curve).rstrip())
    if notes := comparison.notes:
        more = [f"{len(notes) - MOST_NOTES} more notes are in report.html"] if len(notes) > MOST_NOTES else []
        parts.append("".join(f"- {_text(note)}\n" for note in [*notes[:MOST_NOTES], *more]).rstrip())
    return "\n\n".join(parts) + "\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1), *rows]
    return "\n".join(f"| {' | '.join(map(_text, line))} |" for line in lines)


def _text(text: str) -> str:
    """Text that Markdown shows as it is: no markup, no HTML, no links, one line, and the start of a long one."""
    short = text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]}…"
    if re.fullmatch(r"-+:?", short):
        return short
    return re.sub(r"([\\`*_{}\[\]<>|~@#])", r"\\\1", " ".join(short.split()))
