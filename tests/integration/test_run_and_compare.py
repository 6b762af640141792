"""python -m common.compare run=[...]: trains missing runs, keeps finished runs and resumes interrupted runs."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from common.training.rows import read_rows
from tests.conftest import PACED, ROOT, SMALL_IMAGES, in_matrix, wait_until


class CompareCommand:
    """A running `python -m common.compare run=[...]` in its own directory, with a shared cache."""

    def __init__(self, directory: Path, cache: Path, *arguments: str) -> None:
        self.directory = directory
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-m", "common.compare", *SMALL_IMAGES, *arguments, f"cache_dir={cache}"],
            cwd=directory,
            env={"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(directory)},
            stdout=pipe,
            stderr=pipe,
            text=True,
        )

    def wait_for_end(self) -> tuple[int, str, str]:
        """Wait until the command ends. Return its exit code, output and errors. The timeout only ends a hang."""
        output, errors = self.process.communicate(timeout=300)
        return self.process.returncode, output, errors

    def wait_for_step(self, framework: str, step: int) -> Path:
        """Wait until the run of a framework has recorded a step. Return its run directory."""
        wait_until(lambda: self._count_rows(framework) >= step)
        (directory,) = self.directory.glob(f"runs/{framework}-*/")
        return directory

    def _count_rows(self, framework: str) -> int:
        return sum(path.read_bytes().count(b"\n") for path in self.directory.glob(f"runs/{framework}-*/metrics.jsonl"))


Start = Callable[..., CompareCommand]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def start(tmp_path: Path, cache: Path) -> Iterator[Start]:
    """A function that starts the command."""
    commands = []

    def start_command(*arguments: str) -> CompareCommand:
        commands.append(CompareCommand(tmp_path, cache, *arguments))
        return commands[-1]

    yield start_command
    for command in commands:
        command.process.kill()
        command.process.communicate()


def read_summary(directory: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return summary


def test_missing_runs_are_trained_and_finished_runs_are_kept(start: Start, tmp_path: Path) -> None:
    both = ("run=[torch:single,torch:dp]", "train.steps=6")
    code, output, errors = start(*both, "--check").wait_for_end()
    assert (code, errors) == (0, "")
    assert output.splitlines()[0].startswith("torch single: completed") and "lockstep: 2 runs agree at all 6" in output
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*")}
    assert not list(tmp_path.glob("runs/*.log"))
    code, output, _ = start(
        *both, "train.seed=0,5", "reference=" + str(next(tmp_path.glob("runs/torch-single-*")))
    ).wait_for_end()
    assert code == 0 and "torch dp seed=5: completed" in output and "diverged" not in output.splitlines()[0]
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 4
    after = {path: path.stat().st_mtime_ns for path in before if path.name in ("metrics.jsonl", "summary.json")}
    assert after == {path: before[path] for path in after} and len(after) == 4


def test_groups_of_seeds_are_trained_and_judged(start: Start, tmp_path: Path) -> None:
    arguments = ("run=[torch:single]", "train.steps=6", "seeds=2", "optimizer.learning_rate=1e-3,1e-1", "--check")
    code, output, errors = start(*arguments).wait_for_end()
    assert (code, errors) == (1, ""), "two seeds show neither"
    report = json.loads((tmp_path / "report.json").read_text())
    (comparison,) = report["seed_comparisons"]
    assert comparison["reference"]["seeds"] == comparison["contestant"]["seeds"] == [0, 1]
    assert report["verdict"] == comparison["verdict"] == "undecided" and "seeds would settle it" in output
    assert {*comparison["metrics"]} == {"curve", "final_loss", "validation_loss", "accuracy"}
    code, output, _ = start(*arguments, "margin=1e6").wait_for_end()
    assert code == 0 and json.loads((tmp_path / "report.json").read_text())["verdict"] == "equivalent"
    assert len(list(tmp_path.glob("runs/*/summary.json"))) == 4


def test_an_interrupted_run_is_resumed(start: Start) -> None:
    arguments = ("run=[torch:ddp]", "train.steps=120", "strategy.replicas=2", PACED)
    command = start(*arguments)
    directory = command.wait_for_step("torch", 20)
    processes = psutil.Process(command.process.pid).children(recursive=True)
    assert len(processes) >= 3  # the training command and its two replicas
    command.process.send_signal(signal.SIGINT)
    code, _, errors = command.wait_for_end()
    assert (code, errors.splitlines()[-1].partition(":")[0]) == (130, "interrupted")
    assert not psutil.wait_procs(processes, timeout=60)[1]
    stopped = read_summary(directory)
    assert (stopped["status"], stopped["steps"] < 120) == ("interrupted", True)
    code, _, errors = start(*arguments).wait_for_end()
    assert (code, errors) == (0, "")
    assert (
        read_summary(directory)["resumed_from"] == stopped["steps"]
        and len(read_rows(directory / "metrics.jsonl")) == 120
    )


@pytest.mark.matrix
def test_the_other_runs_continue_when_one_crashes(start: Start, tmp_path: Path) -> None:
    command = start("run=[torch:ddp,tf:single]", "train.steps=200", "strategy.replicas=2", PACED)
    command.wait_for_step("torch", 20)
    (training,) = psutil.Process(command.process.pid).children()
    training.children()[-1].send_signal(signal.SIGKILL)
    code, output, errors = command.wait_for_end()
    assert code == 1, errors
    assert [line.split(", ")[0] for line in output.splitlines()[:2]] == ["torch ddp: failed", "tf single: completed"]
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
def test_a_mistake_is_an_error_of_one_line(arguments: list[str], error: str, start: Start, tmp_path: Path) -> None:
    code, output, errors = start(*arguments).wait_for_end()
    assert (code, output) == (2, "")
    assert errors.startswith(f"error: {error}") and errors.count("\n") == 1, errors
    assert not (tmp_path / "runs").exists()
