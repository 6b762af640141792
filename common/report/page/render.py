"""Renders the page: the tables and bars as HTML, the curves as data for its scripts."""

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from common.compare.labels import format_value
from common.compare.pair import LOCKSTEP, explain
from common.compare.verdict import Comparison
from common.report import bars, staleness, traffic, workers
from common.report.answers import answers
from common.report.curves import curves
from common.report.differences import what_differs
from common.report.formats import TableSection
from common.report.terminal import PAIR_COLUMNS, RUN_COLUMNS, pair_cells, run_cells

HERE = Path(__file__).parent
# In this order: each uses those before it.
SCRIPTS = (
    "data.js",
    "columns.js",
    "view.js",
    "plots.js",
    "marks.js",
    "readout.js",
    "controls.js",
    "tables.js",
    "main.js",
)

CAPTIONS = {
    "accuracy": "Share of all validation examples.",
    "mean_absolute_error": "Mean over all validation examples.",
    "perplexity": "The exponential of the validation loss.",
}


def render_html(comparison: Comparison, version: str = "") -> str:
    """The page. Users' text is escaped, by Jinja2 in HTML and by `tojson` in the data; scripts show it as text.

    Only the page's own scripts run: the content security policy names their hashes. version: of a page that is served
    and loads itself again when the server has another version; a page without one makes no request.
    """
    runs, reference = comparison.runs, comparison.reference
    own = "".join(map(read_page_file, (*SCRIPTS, "live.js") if version else SCRIPTS))
    scripts = [read_page_file("uPlot.min.js"), f'"use strict";\n(() => {{\n{own}}})();\n']
    return _template("report.html.j2").render(
        comparison=comparison,
        version=version,
        headline=comparison.sentence.removeprefix(f"{comparison.verdict}: "),
        answers=answers(comparison),
        charts=bars.charts(runs),
        profiles=[(index, run.profile) for index, run in enumerate(runs) if run.profile],
        timelines=workers.timelines(runs),
        differences=what_differs(comparison),
        tables=[
            TableSection(
                "Runs", RUN_COLUMNS, [run_cells(run, reference) for run in runs], ("run", "status", "precision")
            ),
            *staleness.sections(runs, reference),
            *workers.sections(runs),
            *traffic.sections(runs),
        ],
        pair_columns=PAIR_COLUMNS,
        pairs=[
            (pair, pair_cells(pair), "" if pair.verdict == LOCKSTEP else explain(pair)) for pair in comparison.pairs
        ],
        environments=[
            [
                run.label,
                str(run.path),
                *(format_value(run.summary.get(k, "-")) for k in ("versions", "hardware", "fingerprints")),
            ]
            for run in runs
        ],
        metrics={name: text for name, text in CAPTIONS.items() if any(run.evaluated(name) for run in runs)},
        data=curves(comparison),
        style=read_page_file("uPlot.min.css") + read_page_file("page.css"),
        scripts=scripts,
        hashes=script_hashes(scripts),
        licence=read_page_file("uPlot.LICENSE.txt"),
    )


def render_message(message: str) -> str:
    """A page for as long as there is nothing to compare; it loads itself again."""
    return _template("message.html.j2").render(message=message, style=read_page_file("page.css"))


def _template(name: str) -> Template:
    return Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).get_template(name)


def read_page_file(name: str) -> str:
    """Return the text of a file of this folder."""
    return (HERE / name).read_text(encoding="utf-8")


def script_hashes(scripts: Iterable[str]) -> str:
    """Return the sources of a content security policy that allow these scripts and no others."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
