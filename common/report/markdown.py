"""report.md: a comparison for a pull request, with verdict, answers and tables."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from common.compare.pair import DIVERGED, LOCKSTEP, OTHER_CURVE, SAME_CURVE
from common.compare.verdict import Comparison
from common.report.answers import answer_questions, list_reference_pairs
from common.report.differences import find_setting_differences
from common.report.files import write_report_file
from common.report.seed_tables import build_seed_tables
from common.report.tables import PAIR_COLUMNS, RUN_COLUMNS, build_metric_tables, build_pair_cells, build_run_cells
from common.statistics.verdicts import DIFFERENT, EQUIVALENT

SIGNS = {LOCKSTEP: "✅", SAME_CURVE: "✅", EQUIVALENT: "✅", DIVERGED: "❌", OTHER_CURVE: "❌", DIFFERENT: "❌"}
MAX_NOTES = 10
MAX_LETTERS = 600  # length of one text
PICTURE = "loss.png"


def write_markdown(comparison: Comparison, directory: Path, pictures: Sequence[Path] = ()) -> Path:
    """Write report.md into `directory`, which is created if missing. Return the absolute path.

    Args:
        comparison: The comparison.
        directory: The directory of the report.
        pictures: Pictures of the comparison; report.md shows the picture of the loss.
    """
    loss_pictures = [path for path in pictures if path.name == PICTURE]
    links = [quote(os.path.relpath(path, directory.resolve())) for path in loss_pictures]
    return write_report_file(directory, "report.md", render_markdown(comparison, links))


def render_markdown(comparison: Comparison, links: Sequence[str] = ()) -> str:
    """Return the text of report.md: verdict, answers, runs, pairs with the reference, differing settings, notes.

    Args:
        comparison: The comparison.
        links: URLs of pictures.
    """
    parts = [f"**{SIGNS.get(comparison.headline, '⚠️')} {_escape(comparison.sentence)}**"]
    if answers := answer_questions(comparison):
        parts.append(_build_list(f"{answer.question} **{_escape(answer.short)}**" for answer in answers))
    parts += [f"![The loss of each run]({link})" for link in links]
    parts.append(_build_table(RUN_COLUMNS, (build_run_cells(run, comparison.reference) for run in comparison.runs)))
    for table in build_metric_tables(comparison.runs, comparison.reference):
        parts.append(_build_table(table.columns, table.rows))
    for table in build_seed_tables(comparison):
        parts += [
            _escape(table.title),
            _build_table(table.columns, table.rows),
            _build_list(map(_escape, table.sentences)),
        ]
    if comparison.pairs and not comparison.group_comparisons:
        pairs = (build_pair_cells(pair) for _, pair in list_reference_pairs(comparison))
        parts.append(_build_table(PAIR_COLUMNS, pairs))
    if differences := find_setting_differences(comparison).curve:
        parts.append("May change the curve:")
        parts.append(_build_list(f"{_escape(difference.words)} (`{difference.key}`)" for difference in differences))
    if notes := comparison.notes:
        more = [f"{len(notes) - MAX_NOTES} more notes are in report.html"] if len(notes) > MAX_NOTES else []
        parts.append(_build_list(map(_escape, [*notes[:MAX_NOTES], *more])))
    return "\n\n".join(parts) + "\n"


def _build_list(items: Iterable[str]) -> str:
    return "".join(f"- {item}\n" for item in items).rstrip()


def _build_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1), *rows]
    return "\n".join(f"| {' | '.join(map(_escape, line))} |" for line in lines)


def _escape(text: str) -> str:
    """Escape a text so that Markdown shows it as it is, in one line, without markup, HTML or links. Shorten it."""
    short = text if len(text) <= MAX_LETTERS else f"{text[:MAX_LETTERS]}…"
    if re.fullmatch(r"-+:?", short):  # a cell of the line between a table's header and its rows
        return short
    return re.sub(r"([\\`*_{}\[\]<>|~@#])", r"\\\1", " ".join(short.split()))
