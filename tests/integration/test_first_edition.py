"""Runs of the first edition can be exported and compared. They cannot be resumed: their batch plan differs."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, in_matrix

FIXTURES = ROOT / "tests" / "fixtures"
OVERRIDES = (
    *("data.train_examples=60", "data.validation_examples=12", "model.layers=1", "model.hidden_size=8"),
    *("model.intermediate_size=16", "model.max_vocabulary=200", "model.max_positions=64", "train.max_length=64"),
    *("schedule.total_steps=12", "schedule.warmup_steps=2", "train.eval_every=3", "train.global_batch_size=8"),
)


def run_command(directory: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", module, *arguments], cwd=directory, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("name", "framework"), [("first-edition-torch-ddp", "torch"), in_matrix("first-edition-tf-multiworker", "tf")]
)
def test_resuming_is_refused(tmp_path: Path, name: str, framework: str) -> None:
    shutil.copytree(FIXTURES / name, tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    arguments = ("strategy=single", "run_dir=run", "resume=auto", "train.steps=12", *OVERRIDES)
    done = run_command(tmp_path, f"{framework}_impl.train", *arguments)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stdout + done.stderr
    assert "step-00000006 was trained in the order of version 1 of the batch plan, and this is version" in done.stderr
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("name", "framework"), [("first-edition-tf-multiworker", "tf"), in_matrix("first-edition-torch-ddp", "torch")]
)
def test_the_weights_are_exported_and_trained_further(tmp_path: Path, name: str, framework: str) -> None:
    """Let the other framework train the saved weights."""
    assert run_command(tmp_path, "common.export", str(FIXTURES / name), "exported").returncode == 0
    other = {"torch": "tf", "tf": "torch"}[framework]
    data = [override for override in OVERRIDES if override.startswith(("data", "train", "schedule"))]
    arguments = ("model=pretrained", "model.checkpoint=exported", "strategy=single", "run_dir=run", "train.steps=6")
    done = run_command(tmp_path, f"{other}_impl.train", *arguments, *data)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_run_is_not_compared_with_one_in_another_order(tmp_path: Path) -> None:
    first = FIXTURES / "first-edition-torch-ddp"
    arguments = ("strategy=single", "run_dir=run", "train.steps=6", *OVERRIDES)
    assert run_command(tmp_path, "torch_impl.train", *arguments).returncode == 0
    run_command(tmp_path, "common.compare", "run", str(first), "output=.")
    [pair] = json.loads((tmp_path / "report.json").read_text())["pairs"]
    assert pair["verdict"] == "not comparable" and pair["steps"] == 6
    assert "different batch plans (version 2 | version 1)" in pair["reasons"]
