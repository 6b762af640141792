"""Renderer of the page: tables and bars as HTML, and curves as data for the page's scripts."""

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from common.compare.explain import explain_verdict
from common.compare.labels import format_value
from common.compare.pair import LOCKSTEP
from common.compare.runs import Run, list_evaluated_metrics
from common.compare.verdict import Comparison
from common.report.answers import answer_questions
from common.report.bars import build_bar_charts
from common.report.differences import find_setting_differences
from common.report.files import write_report_file
from common.report.formats import describe_metric
from common.report.page.page_data import build_page_data
from common.report.seed_tables import DRAWN_MARGINS, build_interval_rows, build_seed_tables
from common.report.step_chart import build_step_chart
from common.report.tables import (
    PAIR_COLUMNS,
    build_asynchronous_tables,
    build_metric_tables,
    build_pair_cells,
    build_run_table,
    build_staleness_tables,
)
from common.report.traffic_tables import build_traffic_tables
from common.report.worker_updates import build_worker_timelines

HERE = Path(__file__).parent
# Scripts of the page, joined in this order, because each script uses functions of earlier scripts
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
LIVE_SCRIPT = "live.js"  # only in a page that is served by --watch


def write_page(comparison: Comparison, directory: Path) -> Path:
    """Write report.html into `directory`, which is created if missing. Return the absolute path."""
    return write_report_file(directory, "report.html", render_html(comparison))


def render_html(comparison: Comparison, version: str = "") -> str:
    """Return the page.

    Text of users is escaped: by Jinja2 in HTML, by `tojson` in the data. The content security policy names the hashes
    of the page's own scripts, so that no other script runs.

    Args:
        comparison: The comparison.
        version: Version of a page that is served and reloads when the server has another version. A page without a
            version makes no request.
    """
    runs, reference = comparison.runs, comparison.reference
    code = "".join(map(read_page_file, (*SCRIPTS, LIVE_SCRIPT) if version else SCRIPTS))
    scripts = [read_page_file("uPlot.min.js"), f'"use strict";\n(() => {{\n{code}}})();\n']
    return _load_template("report.html.j2").render(
        comparison=comparison,
        version=version,
        explanation=comparison.sentence.removeprefix(f"{comparison.headline}: "),
        answers=answer_questions(comparison),
        charts=build_bar_charts(runs),
        step_charts=[(index, build_step_chart(run.profile)) for index, run in enumerate(runs) if run.profile],
        timelines=build_worker_timelines(runs),
        differences=find_setting_differences(comparison),
        seed_groups=[
            (table, build_interval_rows(group))
            for table, group in zip(build_seed_tables(comparison), comparison.group_comparisons, strict=True)
        ],
        drawn_margins=DRAWN_MARGINS,
        tables=[
            build_run_table(runs, reference),
            *build_metric_tables(runs, reference),
            *build_asynchronous_tables(runs, reference),
            *build_staleness_tables(runs),
            *build_traffic_tables(runs),
        ],
        pair_columns=PAIR_COLUMNS,
        pairs=[
            (pair, build_pair_cells(pair), "" if pair.verdict == LOCKSTEP else explain_verdict(pair))
            for pair in comparison.pairs
        ],
        environments=[_describe_environment(run) for run in runs],
        metrics={name: describe_metric(name) for name in list_evaluated_metrics(runs)},
        data=build_page_data(comparison),
        style=read_page_file("uPlot.min.css") + read_page_file("page.css"),
        scripts=scripts,
        hashes=format_script_hashes(scripts),
        licence=read_page_file("uPlot.LICENSE.txt"),
    )


def _describe_environment(run: Run) -> list[str]:
    """Return label, directory, versions, hardware and fingerprints of a run."""
    parts = (run.summary.get("versions", "-"), run.summary.get("hardware", "-"), run.summary.get("fingerprints", "-"))
    return [run.label, str(run.path), *map(format_value, parts)]


def render_message(message: str) -> str:
    """Return a page with a message while there is nothing to compare. The page reloads itself."""
    return _load_template("message.html.j2").render(message=message, style=read_page_file("page.css"))


def _load_template(name: str) -> Template:
    return Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).get_template(name)


def read_page_file(name: str) -> str:
    """Return the text of a file of this folder."""
    return (HERE / name).read_text(encoding="utf-8")


def format_script_hashes(scripts: Iterable[str]) -> str:
    """Return the sources of a content security policy that allow these scripts and no others."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
