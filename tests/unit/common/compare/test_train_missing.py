"""Tests of the runs that run=[...] plans."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from common.compare import train_missing
from common.compare.train_missing import PlannedRun, plan_runs
from common.errors import UserError

pytestmark = pytest.mark.slow

SMALL = ("model=bert_tiny", "train.steps=7")


def titles(names: list[str], *overrides: str) -> list[str]:
    return [run.title for run in plan_runs(names, [*SMALL, *overrides], Path("runs"), {})]


def test_every_combination_is_planned() -> None:
    planned = titles(["torch:ddp", "tf:mirrored"], "strategy.replicas=1,2", "train.seed=3,4")
    both = [f"replicas={replicas} seed={seed}" for replicas in (1, 2) for seed in (3, 4)]
    assert planned == [f"{name} {values}" for name in ("torch ddp", "tf mirrored") for values in both]


def test_single_has_one_replica() -> None:
    assert titles(["torch:single", "torch:dp"], "strategy.replicas=2,3") == [
        "torch single",
        "torch dp replicas=2",
        "torch dp replicas=3",
    ]


def test_the_title_has_the_whole_value() -> None:
    assert titles(["torch:ddp"], "optimizer.learning_rate=0.01,0.001") == [
        "torch ddp learning_rate=0.01",
        "torch ddp learning_rate=0.001",
    ]


def test_a_path_may_have_a_comma(tmp_path: Path) -> None:
    (run,) = plan_runs(
        ["torch:ddp"], [*SMALL, "data=files", "data.train='a, b.csv'", "data.validation=v.csv"], tmp_path, {}
    )
    assert "data.train='a, b.csv'" in run.overrides


def test_different_configs_have_different_directories() -> None:
    def directory(name: str, *overrides: str) -> Path:
        (run,) = plan_runs([name], [*SMALL, *overrides], Path("runs"), {})
        return run.directory

    same = directory("torch:ddp")
    assert same == directory("torch:ddp", "train.seed=0", "strategy.replicas=2")
    assert same.name.startswith("torch-ddp-")
    others = [
        directory("torch:ddp", "train.seed=1"),
        directory("torch:ddp", "strategy.replicas=3"),
        directory("tf:mirrored"),
    ]
    assert len({same, *others}) == 4


def test_the_log_of_a_run_has_its_whole_name() -> None:
    run = PlannedRun("tf single @keras-3.9", "tf", (), 7, Path("runs/tf-single-keras-3.9-0a1b2c3d"))
    assert run.log == Path("runs/tf-single-keras-3.9-0a1b2c3d.log")


def test_an_environment_has_a_name() -> None:
    with pytest.raises(UserError, match=r"environments=\{a/b: ...\}: must be a name of letters"):
        plan_runs(["torch:ddp"], SMALL, Path("runs"), {"a/b": "/usr/bin/python3"})


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        ("torch:dpp", "train.seed=0", "run=torch:dpp: no such strategy; use one of torch:single, torch:dp, torch:ddp"),
        ("tf:ddp", "train.seed=0", "run=tf:ddp: no such strategy"),
        ("ddp", "train.seed=0", "run=ddp: no such strategy"),
        ("torch:ddp", "run_dir=x", r"run_dir: set by run=\[...\]; remove it"),
        ("torch:ddp", "+strategy=ddp", "strategy: set by run="),
        ("torch:ddp", "train.global_batch_size=0", "train.global_batch_size"),
    ],
)
def test_a_mistake_is_named(name: str, override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan_runs([name], [*SMALL, override], Path("runs"), {})


def test_the_import_of_an_environment_is_tried_once_before_any_run(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def check_import(key: str, python: str, framework: str) -> None:
        tried.append((key, framework))

    monkeypatch.setattr(train_missing, "check_interpreter", lambda *arguments: {})
    monkeypatch.setattr(train_missing, "check_import", check_import)
    plan_runs(["torch:single@old", "torch:dp@old", "tf:single"], SMALL, Path("runs"), {"old": "/old/python"})
    assert tried == [("environments.old", "torch")]


@pytest.mark.parametrize(("name", "needs_hub"), [("bert_tiny", True), ("convnet", False)])
def test_a_bert_of_tensorflow_needs_keras_hub_in_its_environment(
    name: str, needs_hub: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def check_interpreter(key: str, python: str, framework: str, library: str | None = None) -> dict[str, str]:
        if library == "keras_hub":
            raise UserError(f"{key}={python}: has no keras-hub")
        return {}

    monkeypatch.setattr(train_missing, "check_interpreter", check_interpreter)
    monkeypatch.setattr(train_missing, "check_import", lambda *arguments: None)
    overrides = ["model=convnet", "data=digits"] if name == "convnet" else SMALL
    with pytest.raises(UserError, match="no keras-hub") if needs_hub else nullcontext():
        plan_runs(["tf:single@old"], overrides, tmp_path, {"old": "python"})


def test_a_last_row_without_a_loss_ends_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = PlannedRun("torch single", "torch", (), 2, tmp_path / "run")
    run.directory.mkdir()
    (run.directory / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": null}\n')

    def start_training(framework: str, overrides: list[str], log: Path) -> "subprocess.Popen[bytes]":
        log.touch()
        return subprocess.Popen([sys.executable, "-c", ""])

    monkeypatch.setattr(train_missing, "start_training", start_training)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert train_missing.train_missing([run]) == {}
