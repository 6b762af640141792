"""Tests of the chart of the time to a validation loss."""

import json
from pathlib import Path

from common.compare.runs import load_run
from common.report.time_to_loss import build_time_to_loss_chart
from tests.unit.common.compare.conftest import MakeRun


def write_losses(run_dir: Path, *losses: float) -> Path:
    rows = [{"step": 5 * n, "examples": 160 * n, "loss": loss} for n, loss in enumerate(losses, 1)]
    (run_dir / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run_dir


def test_the_lowest_loss_that_all_reach(make_run: MakeRun) -> None:
    runs = [
        load_run(write_losses(make_run("fast"), 0.9, 0.7, 0.5)),
        load_run(write_losses(make_run("slow"), 1.1, 0.9, 0.71999)),
        load_run(write_losses(make_run("none"))),
    ]
    chart = build_time_to_loss_chart(runs)
    assert chart.caption == "Seconds until the validation loss is 0.72 or lower, since the first step began."
    assert [(index, bar.text, bar.end) for index, (bar,) in chart.groups] == [
        (0, "0.5 s, 320 examples", 0.5 / 0.75),
        (1, "0.75 s, 480 examples", 1.0),
    ]


def test_without_evaluations(make_run: MakeRun) -> None:
    assert not build_time_to_loss_chart([load_run(write_losses(make_run("a")))]).groups
