import json
from pathlib import Path
from typing import Any

import pytest

from common.compare.__main__ import main
from common.compare.pair import Tolerance
from common.compare.verdict import compare_runs
from common.report.json_report import build_json_report
from common.report.markdown import render_markdown
from common.report.page.render import render_html
from common.report.pictures import list_pictures
from tests.unit.common.compare.conftest import MakeRun

TOLERANCES = {"float32": Tolerance(loss=1e-5, grad_norm=1e-4)}


def diverge(rows: list[dict[str, Any]]) -> None:
    for row in rows[9:]:
        row["loss"] += 1e-3


def test_the_verdict_comes_first(make_run: MakeRun) -> None:
    runs = [make_run("a"), make_run("b", framework="tf", strategy="mirrored", change=diverge)]
    text = render_markdown(compare_runs(runs, TOLERANCES))
    assert text.startswith(
        "**❌ diverged: torch ddp x2 and tf mirrored x2 diverge at step 10 of 20: loss differs by 0.001 "
    )
    assert "- Do they agree? **until step 9**\n" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert tables[0].startswith("| run | status |") and len({line.count("|") for line in tables[:4]}) == 1
    assert tables[4].startswith("| run a | run b | verdict |") and len(tables) == 7


def test_settings_that_may_change_the_curve_are_listed(make_run: MakeRun) -> None:
    text = render_markdown(compare_runs([make_run("a"), make_run("b", "train.seed=1")], TOLERANCES))
    assert "May change the curve:\n\n- seed 0 against 1 (`train.seed`)\n" in text


def test_markup_in_names_is_escaped(make_run: MakeRun) -> None:
    name = "<b>|`*[x](http://y)@someone\n# title"
    text = render_markdown(compare_runs([make_run("a", strategy=name), make_run("b", strategy="x" * 9999)], TOLERANCES))
    assert r"\<b\>\|\`\*\[x\](http://y)\@someone \# title" in text and "<b>" not in text
    assert max(map(len, text.splitlines())) < 3000


@pytest.mark.slow
def test_one_tolerance_for_every_precision(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [str(make_run("a")), str(make_run("b", change=diverge))]
    assert main([*runs, "--check"]) == 1
    assert main([*runs, "--check", "tolerance=0.01"]) == 0
    assert Path("report.md").read_text().startswith("**✅ lockstep: ")
    with pytest.raises(SystemExit):
        main([*runs, "tolerance=-1"])
    assert capsys.readouterr().err == "error: tolerance=-1.0: must be a number, 0 or more\n"


def test_other_metrics_have_a_table(make_run: MakeRun) -> None:
    runs = [make_run("a"), make_run("b", framework="tf", strategy="mirrored"), make_run("c", strategy="dp")]
    for run, f1 in zip(runs, (0.5, 0.25, None), strict=False):
        evaluation = {"step": 20, "examples": 640, "loss": 0.9, "accuracy": 0.5, "f1": f1, "count": 60, "duration": 0.1}
        (run / "evals.jsonl").write_text(json.dumps({**evaluation, "text": "x", "<b>": 1}) + "\n")
    comparison = compare_runs(runs, TOLERANCES)
    text = render_markdown(comparison)
    assert (
        "| run | accuracy | f1 |\n| --- | ---: | ---: |\n| torch ddp x2 | 0.5 | 0.5 |\n"
        "| tf mirrored x2 | 0.5 (+0) | 0.25 (-0.25) |\n| torch dp x2 | 0.5 (+0) | - |\n" in text
    )
    report = build_json_report(comparison)
    assert report["pairs"][0]["metric_differences"] == {"accuracy": 0, "f1": 0.25}
    assert [run["metrics"] for run in report["runs"]] == [
        {"accuracy": 0.5, "f1": 0.5},
        {"accuracy": 0.5, "f1": 0.25},
        {"accuracy": 0.5},
    ]
    assert "validation-f1" in render_html(comparison)
    assert "validation_f1" in [picture.name for picture in list_pictures(comparison)]
