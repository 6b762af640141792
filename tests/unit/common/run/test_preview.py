from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.config.resolve import resolve_config
from common.run.preview import _count_classes, _describe_matrices, _describe_transforms, describe_plan
from tests.conftest import MakeConfig
from tests.unit.common.run.conftest import MakeRun


def told(text: str) -> dict[str, str]:
    return {line[:20].strip(): line[20:].strip() for line in text.splitlines()}


def test_what_a_run_would_do(small_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = (
        "train.steps=12",
        "train.global_batch_size=25",
        "train.eval_every=5",
        "train.checkpoint_seconds=90",
        "strategy.replicas=2",
    )
    config = resolve_config(small_config("strategy=ddp", "schedule=linear", *sizes))
    plan = {name.rstrip(): value for name, value in told(describe_plan(config, "torch")).items()}
    assert plan["strategy"] == "torch ddp x2 (processes: 2 worker)"
    assert plan["data"] == "builtin_nli: 60 training and 12 validation examples"
    assert plan["class entailment"] == "20 training examples"
    assert plan["steps"] == "12 of 25 examples: 240 examples, 4.00 epochs"
    assert plan["shards"] == "13 or 12 examples of a step for each replica"
    assert plan["learning rate"] == f"linear, at most {config.optimizer.learning_rate:g}; 2 steps of warm-up"
    assert plan["evaluations"] == "every 5 steps, and at the end"
    assert plan["checkpoints"] == "every 500 steps, every 90 s, and at the end"
    assert plan["starts from"] == "the initial weights, step 0"
    assert plan["would write"] == "runs/<time>-torch-ddp"
    assert Path(plan["cache"]).is_dir() and Path(plan["initial weights"]).is_dir()
    assert "updates" not in plan
    assert not list(tmp_path.glob("runs"))


@pytest.mark.slow
def test_where_a_run_would_continue(make_run: MakeRun, small_config: MakeConfig) -> None:
    run_dir = make_run("run")
    config = resolve_config(small_config(f"run_dir={run_dir}", "resume=auto"))
    plan = told(describe_plan(config, "torch"))
    assert plan["starts from"] == f"{run_dir / 'checkpoints' / 'step-00000004'}, step 4"
    assert plan["would write"] == str(run_dir)


@pytest.mark.slow
def test_the_updates_of_parameter_servers(small_config: MakeConfig) -> None:
    config = resolve_config(small_config("strategy=parameter_server", "strategy.replicas=3"))
    assert told(describe_plan(config, "tf"))["updates"] == "900"
    synchronous = replace(config, strategy=replace(config.strategy, max_staleness=0))  # type: ignore[call-arg]
    assert "updates" not in told(describe_plan(synchronous, "tf"))


def test_the_matrices_of_muon_are_shown(make_config: MakeConfig) -> None:
    shapes = {"embeddings.weight": (9, 4), "layer.weight": (4, 3), "layer.bias": (4,), "head.weight": (2, 4)}
    matrices = {"muon": "1 matrices of 12 values; AdamW updates the other 3 parameters"}
    assert _describe_matrices(make_config("optimizer=muon"), shapes) == matrices
    assert _describe_matrices(make_config("optimizer=adafactor"), shapes) == {}


@pytest.mark.slow
def test_the_transforms_are_shown(make_config: MakeConfig) -> None:
    config = make_config("model=convnet", "data.transforms=[{random_crop: 4}, m:f]")
    assert _describe_transforms(config) == {
        "transforms": "random_crop 4, m:f (training; evaluations leave out random ones)"
    }
    assert _describe_transforms(make_config("model=convnet")) == _describe_transforms(make_config()) == {}


def test_classes_are_counted_where_there_are_any() -> None:
    assert _count_classes(np.array([0, 2, 2]), ["a", "b", "c"]) == {
        "a": "1 training examples",
        "b": "0 training examples",
        "c": "2 training examples",
    }
    assert _count_classes(np.array([[0.5, -1], [2, 2]], np.float32), []) == {}
