"""Runs and checkpoints that the first edition wrote are resumed from and compared with."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.run.rows import read_rows
from tests.conftest import ROOT

FIXTURES = ROOT / "tests" / "fixtures"
OVERRIDES = (
    *("data.train_examples=60", "data.validation_examples=12", "model.layers=1", "model.hidden_size=8"),
    *("model.intermediate_size=16", "model.max_vocabulary=200", "model.max_positions=64", "train.max_length=64"),
    *("schedule.total_steps=12", "schedule.warmup_steps=2", "train.eval_every=3", "train.global_batch_size=8"),
)
RUNS = {"first-edition-torch-ddp": "strategy=ddp", "first-edition-tf-multiworker": "strategy=multiworker"}


def command(place: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", module, *arguments], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.parametrize(("name", "as_other"), [(name, other) for name in RUNS for other in (False, True)])
def test_a_checkpoint_is_resumed_and_continues_the_curve(tmp_path: Path, name: str, as_other: bool) -> None:
    """As the strategy that wrote it, in its own directory, and as another one of the other framework."""
    framework = ("tf" if "torch" in name else "torch") if as_other else ("torch" if "torch" in name else "tf")
    if as_other:
        arguments = ["strategy=single", "run_dir=run", f"resume={FIXTURES / name}"]
    else:
        shutil.copytree(FIXTURES / name, tmp_path / "run")
        arguments = [RUNS[name], "strategy.replicas=2", "run_dir=run", "resume=auto"]
    command(tmp_path, f"{framework}_impl.train", *arguments, *OVERRIDES, "train.steps=12")
    rows, expected = read_rows(tmp_path / "run" / "metrics.jsonl"), read_rows(FIXTURES / "first-edition-metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert max(abs(row["loss"] - other["loss"]) for row, other in zip(rows, expected, strict=True)) < 1e-6
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["resumed_from"] == 6
    command(tmp_path, "common.compare", "run", str(FIXTURES / name), "output=.")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["pairs"][0]["steps"] == 6, "the steps that both have"
