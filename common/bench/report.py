"""Writers of the result of a benchmark: bench.json, the page bench.html, and a section of a Markdown document."""

import json
import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from common.bench.charts import build_bar_charts, build_step_timelines, collect_round_speeds
from common.bench.result import BenchResult
from common.bench.result_tables import build_sections
from common.errors import build_write_error
from common.report.page.render import HERE as PAGE
from common.report.page.render import format_script_hashes, read_page_file


def write_report(result: BenchResult, directory: Path) -> list[Path]:
    """Write bench.json and bench.html into an existing directory. Return their paths."""
    contents = {
        "bench.json": json.dumps(result, indent=1, allow_nan=False) + "\n",
        "bench.html": render_html(result),
    }
    for name, text in contents.items():
        _write(directory / name, text)
    return [directory / name for name in contents]


def render_html(result: BenchResult) -> str:
    """Return the page. Jinja2 escapes users' text: in HTML by itself, in the data by its filter `tojson`."""
    here = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader([here, PAGE]), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    scripts = [read_page_file("uPlot.min.js"), f'"use strict";\n{(here / "rounds.js").read_text(encoding="utf-8")}']
    return environment.get_template("bench.html.j2").render(
        title=result["title"],
        sections=build_sections(result),
        names=list(collect_round_speeds(result)),
        charts=build_bar_charts(result),
        rounds=collect_round_speeds(result),
        timelines=build_step_timelines(result),
        style=read_page_file("uPlot.min.css") + read_page_file("page.css"),
        scripts=scripts,
        hashes=format_script_hashes(scripts),
        licence=read_page_file("uPlot.LICENSE.txt"),
    )


def update_document(result: BenchResult, path: Path) -> None:
    """Replace the section with the title of the benchmark in a Markdown file, or add it at the end.

    The file need not exist.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    section = f"## {result['title']}\n\n{_render_markdown(result)}"
    old_section = re.search(rf"^## {re.escape(result['title'])}\n.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if old_section is None:
        text = f"{text.rstrip()}\n\n{section}" if text.strip() else section
    else:
        after = text[old_section.end() :]
        text = text[: old_section.start()] + section + ("\n" + after if after else "")
    _write(path, text)


def _render_markdown(result: BenchResult) -> str:
    parts: list[str] = []
    for section in build_sections(result):
        rows = [section.columns, ["---", *["---:"] * (len(section.columns) - 1)], *section.rows]
        table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
        title = f"### {section.title}\n\n" if parts else ""
        parts.append(f"{title}{table}\n" + "\n\n".join(section.sentences) + "\n")
    return "\n".join(parts)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise build_write_error(path, error) from error
