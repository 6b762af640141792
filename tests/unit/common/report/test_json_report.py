import json
import re
from pathlib import Path

import pytest

from common.compare.verdict import Tolerance, compare_runs
from common.report.json_report import write_json
from common.report.page.render import render_html, write_page
from tests.unit.common.compare.conftest import CHANGED, STEPS, MakeRun

TOLERANCES = {"float32": Tolerance(loss=1e-5, grad_norm=1e-4)}


def test_the_page_loads_nothing_and_escapes_names(make_run: MakeRun, tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"
    runs = [make_run("a"), make_run("b", strategy=name)]
    page = write_page(compare_runs(runs, TOLERANCES), tmp_path / "out").read_text()
    assert name not in page and "&lt;script&gt;alert(1)" in page
    outside_scripts = re.sub(r"<script[^>]*>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"""(src|href)\s*=\s*["']?\s*(https?:)?//""", outside_scripts)
    assert not re.search(r"@import|url\(\s*[\"']?https?:", outside_scripts)
    assert not re.search(r"<script[^>]*\ssrc=", page)
    assert "new uPlot(" in page and "<pre>The MIT License (MIT)" in page


def test_the_json_describes_the_comparison(make_run: MakeRun, tmp_path: Path) -> None:
    path = write_json(compare_runs([make_run("a"), make_run("b")], TOLERANCES), tmp_path)
    report = json.loads(path.read_text())
    assert report["verdict"] == "lockstep" and report["sentence"].startswith("lockstep: 2 runs agree at all 20 steps")
    assert len(report["runs"]) == 2
    (pair,) = report["pairs"]
    assert (pair["verdict"], pair["steps"], pair["max_loss_difference"]) == ("lockstep", STEPS, 0)
    assert report["tolerances"]["float32"] == {"loss": 1e-5, "grad_norm": 1e-4}


def test_a_changed_number_of_replicas_is_marked(make_run: MakeRun, tmp_path: Path) -> None:
    comparison = compare_runs([make_run("a"), make_run("b", replicas=4, replicas_changed=CHANGED)], TOLERANCES)
    report, page = json.loads(write_json(comparison, tmp_path).read_text()), render_html(comparison)
    assert report["verdict"] == "lockstep"
    assert [run.get("replicas_changed") for run in report["runs"]] == [None, CHANGED]
    assert page.count("torch ddp x3→2→4: replicas 3 from step 1, 2 from step 8, 4 from step 15; speed") == 1
    assert "torch ddp x3→2→4</th>" in page and r"2 \u2192 4 replicas" in page


@pytest.mark.slow
def test_of_many_notes_the_page_shows_the_first(make_run: MakeRun) -> None:
    runs = [make_run(str(index), status="failed") for index in range(7)]
    page = render_html(compare_runs(runs, TOLERANCES))
    assert "<summary>2 more notes</summary>" in page and page.count(": status failed</li>") == 7
