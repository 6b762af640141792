"""Tests of the three answers, of the measured speed, and of settings that differ."""

import json
from pathlib import Path
from typing import Any

import pytest

from common.compare.group_verdict import compare_seeds
from common.compare.margins import parse_margins
from common.compare.measures import measure_speed
from common.compare.pair import Tolerance
from common.compare.runs import load_run
from common.compare.verdict import Comparison, compare_runs
from common.errors import UserError
from common.report.answers import answer_questions
from common.report.bars import build_bar_charts
from common.report.differences import find_setting_differences
from common.report.page.render import render_html
from tests.unit.common.compare.conftest import CHANGED, STEPS, MakeGroup, MakeRun

TOLERANCES = {name: Tolerance(loss=1e-5, grad_norm=1e-4) for name in ("float32", "float64")}
TOLERANCES["bfloat16"] = Tolerance(loss=5e-2, grad_norm=5e-1)
Rows = list[dict[str, Any]]


def compare(*runs: Path) -> Comparison:
    return compare_runs(runs, TOLERANCES)


def get_short_answers(comparison: Comparison) -> list[str]:
    return [answer.short for answer in answer_questions(comparison)]


def twice_as_slow(rows: Rows) -> None:
    for row in rows:
        row["seconds"] *= 2


def diverge(rows: Rows) -> None:
    for row in rows[11:]:
        row["loss"] += 0.05


def test_one_run_has_no_answers(make_run: MakeRun) -> None:
    assert answer_questions(compare(make_run("a"))) == []


@pytest.mark.slow
def test_groups_of_seeds_are_answered_by_metric(make_group: MakeGroup) -> None:
    runs = make_group("a", seeds=range(3)) + make_group("b", framework="tf", seeds=range(3))
    comparison = compare_seeds(runs, TOLERANCES, parse_margins("1", {}))
    answer = answer_questions(comparison)[0]
    assert (answer.question, answer.short) == ("Is the difference normal?", comparison.verdict)
    assert answer.lines[:2] == ["training loss over the whole curve: undecided", "final training loss: undecided"]
    runs += make_group("c", "train.compile=true", framework="tf", seeds=range(3))
    lines = answer_questions(compare_seeds(runs, TOLERANCES, parse_margins("1", {})))[0].lines
    assert [line.partition(": ")[0] for line in lines] == ["undecided", "undecided"]


def test_runs_that_agree(make_run: MakeRun) -> None:
    comparison = compare(make_run("a"), make_run("b", framework="tf", change=twice_as_slow))
    assert get_short_answers(comparison) == ["yes, at every step", "torch ddp x2, 2.00 times", "nothing to pay"]
    agreement, fastest, cost = answer_questions(comparison)
    assert agreement.lines == ["tf ddp x2: loss within 0 (tolerance 1e-05), identical at 20 of 20 steps"]
    assert fastest.lines[0] == "torch ddp x2 against tf ddp x2: 2.00 to 2.00 times by the quartiles"
    assert cost.lines == ["every run is synchronous, in float32"]


def test_runs_that_diverge(make_run: MakeRun) -> None:
    comparison = compare(make_run("a"), make_run("b", change=diverge))
    agreement, fastest, _ = answer_questions(comparison)
    assert (agreement.short, agreement.tone) == ("until step 11", "bad")
    assert "diverge at step 12 of 20: loss differs by 0.05" in agreement.lines[0]
    a, b = (run.path for run in comparison.runs)
    assert agreement.lines[-1] == f"why: python -m common.diagnose {a} {b}"
    assert fastest.short == "no clear difference"


def test_runs_that_diverge_at_the_first_step(make_run: MakeRun) -> None:
    def at_once(rows: list[dict[str, Any]]) -> None:
        rows[0]["loss"] += 1

    agreement, *_ = answer_questions(compare(make_run("a"), make_run("b", change=at_once)))
    assert agreement.short == "at no step"


@pytest.mark.slow
def test_different_experiments(make_run: MakeRun) -> None:
    runs = [make_run("a"), make_run("b"), make_run("c", "train.seed=3")]
    assert get_short_answers(compare(*runs))[0] == "1 of 2 with torch ddp x2 (train.seed=0, a)"
    assert get_short_answers(compare(runs[0], runs[2]))[0] == "not comparable"


@pytest.mark.slow
def test_what_asynchrony_and_low_precision_cost(make_run: MakeRun, make_asynchronous: MakeRun) -> None:
    runs = make_run("a"), make_asynchronous("ps"), make_run("b", "train.precision=bfloat16", strategy="single")
    evaluation = {"step": STEPS, "examples": 640, "loss": 0.95, "accuracy": 0.48, "count": 60, "duration": 0.1}
    (runs[1] / "evals.jsonl").write_text(json.dumps(evaluation) + "\n")
    cost = answer_questions(compare(*runs))[2]
    assert (cost.short, cost.tone) == ("accuracy -2.00 points", "bad")
    assert cost.lines == [
        "torch parameter_server x2 (asynchronous): accuracy -2.00 points, validation loss +0.0500 against torch ddp x2",
        "torch single x2 (bfloat16): accuracy ±0 points, validation loss +0.0000 against torch ddp x2",
    ]


def test_the_speed_leaves_out_warm_up_and_evaluations(make_run: MakeRun) -> None:
    def pause(rows: Rows) -> None:
        for row in rows:
            row["seconds"] += 100 + (50 if row["step"] > 10 else 0)  # a slow start, and an evaluation after step 10

    run_dir = make_run("a", "train.warmup_steps_untimed=2", change=pause)
    evaluation = {"step": 10, "examples": 320, "loss": 1, "accuracy": 0, "count": 1, "duration": 50}
    (run_dir / "evals.jsonl").write_text(json.dumps(evaluation) + "\n")
    speed = measure_speed(load_run(run_dir))
    assert speed and speed.blocks == 6
    assert speed.median == pytest.approx(640) and speed.lower == pytest.approx(640)


def test_the_speed_is_measured_with_the_last_number_of_replicas(make_run: MakeRun) -> None:
    def faster(rows: Rows) -> None:
        for row in rows[14:]:
            row["seconds"] = 14 / 20 + (row["step"] - 14) / 40

    speed = measure_speed(
        load_run(make_run("a", "train.warmup_steps_untimed=0", replicas_changed=CHANGED, change=faster))
    )
    assert speed and speed.median == pytest.approx(1280)


def test_a_run_too_short_for_a_speed(make_run: MakeRun) -> None:
    assert measure_speed(load_run(make_run("a", change=lambda rows: rows.__delitem__(slice(2, None))))) is None
    assert (
        measure_speed(load_run(make_run("b", change=lambda rows: [row.pop("seconds") for row in rows] and None)))
        is None
    )


def test_the_efficiency_of_more_replicas(make_run: MakeRun) -> None:
    comparison = compare(make_run("a", replicas=1), make_run("b", replicas=2))
    (_, (one,)), (_, (two,)) = build_bar_charts(comparison.runs)[0].groups
    assert "efficient" not in one.text and two.text.endswith(", 50% efficient against 1 replica")


@pytest.mark.slow
def test_settings_that_differ_are_listed_in_words(make_run: MakeRun) -> None:
    a = make_run("a", "train.global_batch_size=32")
    b = make_run("b", "train.global_batch_size=64", "strategy=allreduce", strategy="allreduce")
    (b / "summary.json").write_text(
        (b / "summary.json").read_text().replace('"python": "3.11"', '"python": "3.12", "tensorflow": "2.21"')
    )
    differences = find_setting_differences(compare(a, b))
    assert [difference.words for difference in differences.curve] == ["global batch size 32 against 64"]
    assert "strategy single against allreduce" in [difference.words for difference in differences.other]
    assert "strategy.algorithm" in [difference.key for difference in differences.folded], (
        "the other strategy cannot have it"
    )
    assert [difference.words for difference in differences.versions] == ["python 3.11 against 3.12"]
    assert differences.hardware == []
    assert differences.same["train.seed"] == "0" and "train.global_batch_size" not in differences.same


@pytest.mark.slow
def test_tasks_without_accuracy(make_run: MakeRun) -> None:
    runs = [make_run("a", accuracy=None), make_run("b", "train.precision=bfloat16", accuracy=None)]
    evaluation = {
        "step": STEPS,
        "examples": 640,
        "loss": 0.95,
        "mean_absolute_error": 0.4,
        "count": 60,
        "duration": 0.1,
    }
    for run_dir in runs:
        (run_dir / "evals.jsonl").write_text(json.dumps(evaluation) + "\n")
    comparison = compare(*runs)
    assert comparison.pairs[0].accuracy_difference is None and comparison.pairs[0].evaluation_loss_difference == 0
    assert get_short_answers(comparison)[2] == "validation loss +0.0000"
    page = render_html(comparison)
    assert "<h3>Validation mean absolute error</h3>" in page and "<h3>Validation accuracy</h3>" not in page


def test_a_malformed_metric_of_an_evaluation_is_named(make_run: MakeRun) -> None:
    run_dir = make_run("a")
    (run_dir / "evals.jsonl").write_text('{"step": 1, "examples": 32, "loss": 1, "accuracy": "half"}\n')
    with pytest.raises(UserError, match=r"evals.jsonl:1: 'accuracy' must be a number, found 'half'"):
        load_run(run_dir)
