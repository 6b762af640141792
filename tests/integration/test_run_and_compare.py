"""python -m common.compare run=[...]: missing trainings run, finished ones are kept, interrupted ones are resumed."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from common.training.rows import read_rows
from tests.conftest import ROOT, in_matrix, wait_until

SMALL = ("model=bert_tiny", "train.global_batch_size=8")


class Command:
    """`python -m common.compare run=[...]` in a directory of its own; the cache is shared."""

    def __init__(self, directory: Path, cache: Path, *arguments: str) -> None:
        self.directory = directory
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-m", "common.compare", *SMALL, *arguments, f"cache_dir={cache}"],
            cwd=directory,
            env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(directory)},
            stdout=pipe,
            stderr=pipe,
            text=True,
        )

    def end(self) -> tuple[int, str, str]:
        said, complained = self.process.communicate(timeout=180)
        return self.process.returncode, said, complained

    def at(self, framework: str, step: int) -> Path:
        """The directory of this side's run, when it is at this step."""
        wait_until(lambda: len(self._rows(framework)) >= step, 120)
        (directory,) = self.directory.glob(f"runs/{framework}-*/")
        return directory

    def _rows(self, framework: str) -> list[bytes]:
        found = list(self.directory.glob(f"runs/{framework}-*/metrics.jsonl"))
        return found[0].read_bytes().splitlines() if found else []


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def started(tmp_path: Path, cache: Path) -> Iterator[Any]:
    commands = []

    def start(*arguments: str) -> Command:
        commands.append(Command(tmp_path, cache, *arguments))
        return commands[-1]

    yield start
    for each in commands:
        each.process.kill()
        each.process.communicate()


def summary(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return found


def test_what_is_missing_is_trained_and_what_is_finished_is_kept(started: Any, tmp_path: Path) -> None:
    both = ("run=[torch:single,tf:single]", "train.steps=6")
    code, said, complained = started(*both, "--check").end()
    assert (code, complained) == (0, "")
    assert said.splitlines()[0].startswith("torch single: completed") and "lockstep: 2 runs agree at all 6" in said
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*")}
    assert not list(tmp_path.glob("runs/*.log"))
    code, said, _ = started(*both, "train.seed=0,5", "reference=" + str(next(tmp_path.glob("runs/torch-*")))).end()
    assert code == 0 and "tf single seed=5: completed" in said and "diverged" not in said.splitlines()[0]
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 4
    kept = {path: path.stat().st_mtime_ns for path in before if path.name in ("metrics.jsonl", "summary.json")}
    assert kept == {path: before[path] for path in kept} and len(kept) == 4


def test_an_interrupted_one_is_resumed(started: Any) -> None:
    arguments = ("run=[torch:ddp]", "train.steps=200", "strategy.replicas=2")
    command = started(*arguments)
    directory = command.at("torch", 20)
    processes = psutil.Process(command.process.pid).children(recursive=True)
    assert len(processes) >= 3  # the command of the training and its two replicas
    command.process.send_signal(signal.SIGINT)
    code, _, complained = command.end()
    assert (code, complained.splitlines()[-1].partition(":")[0]) == (130, "interrupted")
    assert not psutil.wait_procs(processes, timeout=5)[1]
    stopped = summary(directory)
    assert (stopped["status"], stopped["steps"] < 200) == ("interrupted", True)
    code, said, complained = started(*arguments).end()
    assert (code, complained) == (0, "")
    assert summary(directory)["resumed_from"] == stopped["steps"] and len(read_rows(directory / "metrics.jsonl")) == 200


def test_the_others_go_on_when_one_crashes(started: Any, tmp_path: Path) -> None:
    command = started("run=[torch:ddp,tf:single]", "train.steps=200", "strategy.replicas=2")
    command.at("torch", 20)
    (training,) = psutil.Process(command.process.pid).children()
    training.children()[-1].send_signal(signal.SIGKILL)
    code, said, complained = command.end()
    assert code == 1, complained
    assert [line.split(", ")[0] for line in said.splitlines()[:2]] == ["torch ddp: failed", "tf single: completed"]
    assert "SIGKILL" in next(tmp_path.glob("runs/torch-*.log")).read_text()
    assert (tmp_path / "report.html").exists() and "torch ddp: " in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["run=[torch:ddp]", "train.global_batch_size=0"], "train.global_batch_size=0: must be at least 1"),
        in_matrix(["run=[torch:ddp]", "train.sed=1"], "train.sed: no such key here; did you mean train.seed?"),
        in_matrix(["run=[torch:ddp]", "run_name=x"], "run_name: set by run=[...]; remove it"),
        (["run=[]", "train.steps=4"], "run=[]: names no training run; pass 'run=[torch:ddp,tf:mirrored]'"),
        in_matrix(["run=torch:ddp"], "run: must be a list; give 'run=[...,...]'"),
    ],
)
def test_a_mistake_is_an_error_of_one_line(arguments: list[str], error: str, started: Any, tmp_path: Path) -> None:
    code, said, complained = started(*arguments).end()
    assert (code, said) == (2, "")
    assert complained.startswith(f"error: {error}") and complained.count("\n") == 1, complained
    assert not (tmp_path / "runs").exists()
