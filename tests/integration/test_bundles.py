"""A run that travels: its bundle is diagnosed without the paths of the machine on which it was made."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.compare.__main__ import main
from common.diagnose.diagnosis import read_diagnosis
from common.run.export_bundle import export_bundle
from tests.conftest import ROOT, SMALL_MODEL

pytestmark = pytest.mark.slow


def run(directory: Path, module: str, *arguments: str) -> str:
    """Run a command in a directory, with a home and temporary files of its own, and return what it printed."""
    for name in ("home", "temporary"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "HOME": str(directory / "home"), "TMPDIR": str(directory / "temporary")}
    command = [sys.executable, "-P", "-m", module, *arguments]
    environment |= {"PYTHONPATH": str(ROOT)}
    completed = subprocess.run(command, cwd=directory, env=environment, text=True, capture_output=True, timeout=240)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def test_a_bundle_is_diagnosed_and_compared_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    labels = ("entailment", "neutral", "contradiction")
    rows = [f"a dog {number} runs,a cat {number % 7} sits,{labels[number % 3]}\n" for number in range(40)]
    for name in ("train", "validation"):
        (there / f"{name}.csv").write_text("".join(["premise,hypothesis,label\n", *rows]))
    keys = ["data=files", "data.train=train.csv", "data.validation=validation.csv", *SMALL_MODEL, "train.steps=4"]
    run(there, "torch_impl.train", "strategy=single", *keys, "train.global_batch_size=8", "run_dir=run")
    here.mkdir()
    export_bundle(there / "run", here / "a.zip")
    shutil.rmtree(there)
    shutil.copy(here / "a.zip", here / "b.zip")
    shown = run(here, "common.diagnose", "a=a.zip", "b=b.zip")
    assert shown.startswith("no difference: A (torch single) and B (torch single) are the same at every stage")
    record = read_diagnosis(here / "diagnosis" / "diagnosis.json")
    assert record["equal"] and not record["environment"] and not record["unreproduced"]
    assert main([str(here / "a.zip"), str(here / "b.zip"), f"output={here}"]) == 0
    assert "lockstep: 2 runs agree at all 4 steps" in capsys.readouterr().out
    assert not list((here / "temporary").glob("lockstep-*")) and not (here / "cache").exists()
