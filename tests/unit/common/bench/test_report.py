"""The page and the document of a benchmark."""

import json
import re
from pathlib import Path
from typing import cast

import pytest

from common.bench.charts import build_bar_charts, collect_round_speeds
from common.bench.report import render_html, update_document, write_report
from common.bench.result import BenchResult


@pytest.mark.slow
def test_the_page_is_self_contained_and_shows_every_contestant(result: BenchResult, tmp_path: Path) -> None:
    json_path, html_path = write_report(result, tmp_path)
    assert json.loads(json_path.read_text()) == result
    page = re.sub(r"<script>.*?</script>", "", html_path.read_text(), flags=re.DOTALL)
    assert not re.search(r'(src|href)="(?!data:)', page)
    for name in ("ddp", "ddp_x1", "hf_trainer"):
        assert f'<th scope="row">{name}</th>' in page
    assert page.count('class="bars"') == len(build_bar_charts(result)) == 3
    assert list(collect_round_speeds(result)) == ["ddp", "ddp_x1", "hf_trainer"]


def test_texts_are_escaped(result: BenchResult) -> None:
    result["title"] = "<b>title</b>"
    result["contestants"][0]["name"] = "<script>alert(1)</script>"
    page = render_html(result)
    assert "<b>title" not in page and "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_a_chart_has_the_medians_and_quartiles(result: BenchResult) -> None:
    result["contestants"][0]["ratio"] = {"median": 2.0, "lower": 1.5, "upper": 3.0}
    index, (bar,) = build_bar_charts(result)[0].groups[0]
    assert (index, bar.text) == (0, "2.00 (1.50 to 3.00)")
    assert (bar.end, bar.low, bar.high) == (pytest.approx(2 / 3), 0.5, 1.0)


def change_title(result: BenchResult, title: str) -> BenchResult:
    return cast(BenchResult, {**result, "title": title})


def test_only_the_section_of_the_title_is_replaced(result: BenchResult, tmp_path: Path) -> None:
    path = tmp_path / "performance.md"
    update_document(change_title(result, "First"), path)
    update_document(change_title(result, "Second"), path)
    path.write_text(f"# Performance\n\nWritten by hand.\n\n{path.read_text()}")
    before = path.read_text()
    assert re.findall("^#+ .*", before, re.MULTILINE) == ["# Performance", "## First", "## Second"]
    update_document(change_title(result, "First"), path)
    assert path.read_text() == before
    changed = change_title(result, "First")
    changed["overrides"] = ["model=other"]
    update_document(changed, path)
    after = path.read_text()
    assert "model=other" in after.partition("## Second")[0]
    assert after.partition("## Second")[2] == before.partition("## Second")[2]
    assert after.startswith("# Performance\n\nWritten by hand.\n\n## First\n\n| contestant | replicas |")
    update_document(change_title(changed, "Second"), path)
    assert path.read_text().count("model=other") == 2
