"""python -m common.compare with groups of seeds."""

import json
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest

from common.compare.__main__ import main
from common.compare.group_values import TimeToLoss
from common.compare.options import parse_command_line
from common.compare.train_missing import PlannedRun
from common.report.seed_tables import describe_curve
from common.statistics.paired import measure_shift
from tests.unit.common.compare.conftest import MakeRun


@pytest.fixture(autouse=True)
def in_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_curves(directory: str, shift: float = 0.0) -> list[str]:
    paths = [Path(directory, f"{seed}.csv") for seed in range(5)]
    for seed, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        losses = (2 / step + 0.1 * seed + 0.001 * (seed * step % 7) + shift * (1 + seed / 9) for step in range(1, 31))
        path.write_text("step,loss\n" + "".join(f"{step},{loss}\n" for step, loss in enumerate(losses, 1)))
    return list(map(str, paths))


@pytest.mark.slow
def test_external_groups_and_the_reports(capsys: pytest.CaptureFixture[str]) -> None:
    old, new = write_curves("old"), write_curves("new", 0.3)
    assert main([*old, *new, "group=seed", "--check"]) == 1
    shown = capsys.readouterr().out
    assert "different: new and old over 5 seeds: training loss over the whole curve of new is" in shown
    report = json.loads(Path("report.json").read_text())
    (comparison,) = report["seed_comparisons"]
    assert report["verdict"] == comparison["verdict"] == "different" and comparison["residuals_above"] == 1
    curve = comparison["metrics"]["curve"]
    assert curve["mean_difference"] == pytest.approx(0.3 * (1 + 2 / 9)) and len(curve["reference"]) == 5
    assert curve["t_interval"][0] < curve["mean_difference"] < curve["t_interval"][1] and curve["margin"] > 0
    page, markdown = Path("report.html").read_text(), Path("report.md").read_text()
    assert "new against old, 5 seeds: different" in page and page.count('class="interval diverged"') == 2
    assert "**❌ different: new and old" in markdown and "Residuals of the curve: one-sided" in markdown
    assert main(["old=old/*.csv", "new=new/*.csv", "group=seed", "margin=1", "--check"]) == 0
    assert "a shift is real, but smaller, in training loss over the whole curve" in capsys.readouterr().out


def test_seeds_train_every_contestant_with_every_seed() -> None:
    command_line = parse_command_line(None, ["run=[torch:ddp,tf:mirrored]", "seeds=3", "train.steps=7"])
    assert command_line.training_overrides == ["train.steps=7", "train.seed=0,1,2"] and command_line.options.has_groups


def test_a_seed_that_cannot_be_read_is_named(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [make_run(f"{name}/{seed}", f"train.seed={seed}") for name in ("a", "b") for seed in range(3)]
    (runs[4] / "summary.json").unlink()
    with pytest.raises(SystemExit):
        main([*map(str, runs), "group=seed"])
    error = capsys.readouterr().err
    assert f"train the seeds 1 in both groups, or leave them out (left out: {runs[4]}: summary.json is missing" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run=[torch:ddp]", "seeds=1"], "seeds=1: must be 2 or more"),
        (["run=[torch:ddp]", "seeds=3", "train.seed=7"], "train.seed: set by seeds=...; remove one of them"),
        (["seeds=3"], "run=[]: names no training run"),
        (["runs/a", "group=day"], "group=day: must be seed"),
        (["runs/a", "group=seed"], "torch ddp x2: only one run, runs/a; a group needs"),
        (["runs/a", "group=seed", "margin=much"], "margin=much: must be a number such as 0.01"),
    ],
)
def test_a_mistake_is_one_line(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    make_run("a")
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    printed = capsys.readouterr().err
    assert stopped.value.code == 2 and printed.startswith("error: ") and printed.count("\n") == 1
    assert message in printed


def test_without_a_directory_all_runs_are_read(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    for framework in ("torch", "tf"):
        for seed in range(2):
            make_run(f"{framework}-{seed}", f"train.seed={seed}", framework=framework)
    assert main(["group=seed"]) == 0
    assert "tf ddp x2 and torch ddp x2 over 2 seeds" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["group=seed", "runs=missing"])
    assert capsys.readouterr().err.startswith("error: missing: no such run directory")


@pytest.mark.slow
def test_a_seed_that_diverges_in_training_is_compared(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = []
    for name in ("torch", "tf"):
        for seed in range(2):
            error = (
                {"status": "failed", "error": "step 8: the loss is nan; examples"} if (name, seed) == ("tf", 1) else {}
            )
            path = make_run(f"{name}-{seed}", f"train.seed={seed}", framework=name, **error)
            planned.append(PlannedRun(f"{name} seed={seed}", name, (), 20, path))
    failures = {planned[-1].directory: "tf seed=1: the loss is nan", Path("runs/lost"): "tf seed=2: out of memory"}
    monkeypatch.setattr("common.compare.__main__.plan_runs", lambda *arguments: planned)
    monkeypatch.setattr("common.compare.__main__.train_missing", lambda runs: failures)
    arguments = ["run=[torch:ddp,tf:ddp]", "seeds=2"]
    assert main(arguments) == 1
    assert "incomplete: 1 left out (tf seed=2: out of memory); the others: different:" in capsys.readouterr().out
    del failures[Path("runs/lost")]
    assert main(arguments) == 1
    shown = capsys.readouterr()
    assert "left out" not in shown.out + shown.err and "seed 1 of tf ddp x2 diverged: step 8" in shown.out
    assert main(arguments[:1]) == 1 and "incomplete: 1 left out" in capsys.readouterr().out


def test_reports_of_a_metric_that_is_not_finite(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    for framework in ("torch", "tf"):
        for seed in range(2):
            path = make_run(f"{framework}-{seed}", f"train.seed={seed}", framework=framework)
    evaluations = path / "evals.jsonl"
    evaluations.write_text(evaluations.read_text().replace('"loss": 0.9', '"loss": NaN'))
    assert main(["group=seed", "--check"]) == 1
    assert "validation loss is not finite in one run of seed 1" in capsys.readouterr().out
    report = json.loads(Path("report.json").read_text())
    loss = report["seed_comparisons"][0]["metrics"]["validation_loss"]
    assert (loss["verdict"], loss["reference"], loss["contestant"]) == ("different", [0.9, 0.9], [0.9, None])


def test_the_time_to_a_loss_is_a_median() -> None:
    times = np.array([10.0, 20.0, 30.0, 60.0])
    group = MagicMock(
        time_to_loss=TimeToLoss(1.0, "example", times, times, measure_shift(np.zeros(4))),
        judgement=MagicMock(residuals=None),
    )
    assert "median 25 (10 to 60) of " in describe_curve(group)[0]
