"""Values that groups of seeds are compared by, if runs have no value, no evaluation or another length."""

import json
from typing import Any

import pytest

from common.compare.runs import Run, load_run
from common.statistics.verdicts import DIFFERENT, EQUIVALENT, UNDECIDED
from tests.unit.common.compare.conftest import Load, MakeGroup
from tests.unit.common.compare.test_seed_groups import judge


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bootstrap decides no verdict."""
    monkeypatch.setattr("common.statistics.paired.RESAMPLES", 9)


def change_evaluation(run: Run, **fields: Any) -> Run:
    """Change fields of the run's evaluation, or remove those that are `...`, and read the run again."""
    path = run.path / "evals.jsonl"
    row = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in row.items() if value is not ...}) + "\n")
    return load_run(run.path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
@pytest.mark.parametrize(("field", "name"), [("loss", "validation_loss"), ("accuracy", "accuracy")])
def test_a_metric_that_is_not_finite_in_one_seed_is_different(
    make_group: MakeGroup, field: str, name: str, value: float | None
) -> None:
    base, contestant = make_group("a", seeds=range(3)), make_group("b", framework="tf", seeds=range(3))
    contestant[1] = change_evaluation(contestant[1], **{field: value})
    comparison = judge(base + contestant)
    assert comparison.verdict == DIFFERENT
    result = comparison.group_comparisons[0].judgement.metrics[name]
    assert result.verdict == DIFFERENT and result.not_finite == [1]
    assert f"{name.replace('_', ' ')} is not finite in one run of seed 1" in comparison.sentence


def test_what_a_run_did_not_record_is_noted(make_group: MakeGroup) -> None:
    base, contestant = make_group("a"), make_group("b", framework="tf")
    contestant[1:3] = [change_evaluation(run, accuracy=...) for run in contestant[1:3]]
    comparison = judge(base + contestant)
    assert comparison.verdict == EQUIVALENT
    assert {*comparison.group_comparisons[0].judgement.metrics} == {"curve", "final_loss", "validation_loss"}
    note = "accuracy is not compared: not recorded by seed 1 of tf ddp x2 and 1 more"
    assert any(note in text for text in comparison.notes)
    (contestant[4].path / "evals.jsonl").unlink()
    comparison = judge([load_run(run.path) for run in base + contestant])
    assert {*comparison.group_comparisons[0].judgement.metrics} == {"curve", "final_loss"}
    note = "no validation is compared, because seed 4 of tf ddp x2 made none"
    assert any(note in text for text in comparison.notes)


def test_an_external_run_without_accuracy_is_noted(load: Load) -> None:
    rows = "".join(f"{step},{2 / step},{1 / step},0.5\n" for step in range(1, 21))
    runs = []
    for name in ("a0", "a1", "b0", "b1"):
        header = "step,loss,eval_loss," + ("eval_accuracy" if name[0] == "a" else "other")
        run = load(f"{name}.csv", f"{header}\n{rows}")
        run.label = name[0]
        runs.append(run)
    comparison = judge(runs)
    assert "b and a: accuracy is not compared: not recorded by b0.csv of b and 1 more" in comparison.notes


def test_runs_of_different_lengths_are_not_called_equivalent(make_group: MakeGroup) -> None:
    base, contestant = make_group("a"), make_group("b", framework="tf")
    for run, rows in ((contestant[3], 10), (base[1], 12)):
        path = run.path / "metrics.jsonl"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:rows]))
    comparison = judge([load_run(run.path) for run in base + contestant])
    cut = "the curves are compared up to 320 examples, where seed 3 of tf ddp x2 ends; other runs have up to 640"
    assert comparison.verdict == UNDECIDED and f"below its margin, but {cut}" in comparison.sentence
    assert any(cut in note for note in comparison.notes)


def test_a_last_update_that_ends_later_is_not_another_length(make_group: MakeGroup) -> None:
    base, contestant = make_group("a", seeds=range(2)), make_group("b", framework="tf", seeds=range(2))
    path = contestant[1].path / "metrics.jsonl"
    path.write_text(path.read_text().replace('"examples": 640', '"examples": 644'))
    comparison = judge([load_run(run.path) for run in base + contestant])
    assert not any("the curves are compared up to" in note for note in comparison.notes)


def test_one_sided_residuals_are_described_if_nothing_else_is_shown(load: Load) -> None:
    """The first point is noisy and hides the shift of the others."""
    runs = []
    for group, shift in (("a", 0), ("b", 0.01)):
        for seed in range(8):
            noise = 100 * (-1) ** seed * (shift > 0)
            losses = [3 + seed + noise, *(2 + seed + shift * (1 + (7 * seed + step) % 5 / 10) for step in range(40))]
            rows = "".join(f"{step},{loss}\n" for step, loss in enumerate(losses, 1))
            runs.append(load(f"{group}{seed}.csv", f"step,loss\n{rows}"))
            runs[-1].label = group
    comparison = judge(runs)
    assert comparison.verdict == DIFFERENT
    assert "b is above a at 99 % of the points of the curves (p " in comparison.sentence
