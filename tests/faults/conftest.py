"""Runs that a test disturbs with a fault, and measurements of how they recover.

Tests find the processes and the progress of a run in the files of its run directory.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import pytest

from common.training.rows import read_rows
from tests.conftest import PACED, SMALL_IMAGES, wait_until

ROOT = Path(__file__).parents[2]
ROUND = int(os.environ.get("FAULTS_ROUND", 0))  # `make faults` runs several rounds, with faults at different steps
STEPS, CHECKPOINT_EVERY = 60, 10
FIRST_FAULT_STEP = 12  # after the first checkpoint
CORPUS = ("data.train_examples=300", "data.validation_examples=60")
TEXT = ("model=bert_tiny", *CORPUS)  # for faults that need text, long evaluations or large checkpoints
# Every step is recorded, so that a test can wait for the step of its fault.
SHARED = (
    f"train.steps={STEPS}",
    "train.log_every=1",
    f"train.checkpoint_every={CHECKPOINT_EVERY}",
    "train.eval_every=20",
    "cluster.timeout=20",
    "optimizer.learning_rate=1e-3",
)
DDP = ("torch", "strategy=ddp", "strategy.replicas=2")
MIRRORED = ("tf", "strategy=mirrored", "strategy.replicas=2")
MULTIWORKER = ("tf", "strategy=multiworker", "strategy.workers=2")
SERVERS = ("strategy=parameter_server", "strategy.workers=2", "strategy.parameter_servers=2")
SYNCHRONOUS = (*SERVERS, "strategy.max_staleness=0")


class Run:
    """The running command of a training run.

    Attributes:
        run_dir: The run directory.
        output: The file that receives standard output and standard error.
        process: The process of the command.
        fault_at: When the fault happened, or when the command was started, in seconds of the monotonic clock.
        processes_before: The contents of processes.json at that time.
    """

    def __init__(
        self,
        run_dir: Path,
        framework: str,
        *overrides: str,
        command: Callable[[list[str]], Sequence[str]] = tuple,
        **environment: str,
    ) -> None:
        """Start the command.

        Args:
            run_dir: The run directory, unless an override sets another one.
            framework: The side that trains.
            *overrides: The overrides of the config.
            command: Wraps the command, to run it under another launcher or on another host.
            **environment: Additional environment variables.
        """
        paths = {"run_dir": str(run_dir), "cache_dir": str(run_dir.parent / "cache")}
        paths |= {key: value for key, _, value in (override.partition("=") for override in overrides) if key in paths}
        self.run_dir = Path(paths["run_dir"])
        self.mark_fault()
        images = (
            () if any(override.startswith(("data=", "model=")) for override in overrides) else (*SMALL_IMAGES, PACED)
        )
        arguments = [*images, *SHARED, *overrides, *(f"{key}={value}" for key, value in paths.items())]
        # A pipe would fill up while the test does not read it, and block the run.
        with NamedTemporaryFile("w", dir=run_dir.parent, prefix=f"{run_dir.name}-", delete=False) as output:
            self.output = Path(output.name)
            self.process = subprocess.Popen(
                command([sys.executable, "-m", f"{framework}_impl.train", *arguments]),
                cwd=run_dir.parent,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def mark_fault(self) -> None:
        """Record that the fault happens now. `wait_for_restart` and `wait_for_recovery` measure from here."""
        self.processes_before, self.fault_at = self._read_processes(), time.monotonic()

    def _read_processes(self) -> str | None:
        path = self.run_dir / "processes.json"
        return path.read_text() if path.exists() else None

    def pid(self, name: str) -> int:
        """Return the id of a process, which the run has recorded under this name."""
        pids: dict[str, int] = json.loads((self.run_dir / "processes.json").read_text())
        return pids[name]

    @property
    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = read_rows(self.run_dir / "metrics.jsonl")
        return rows

    @property
    def step(self) -> int:
        """The last recorded step; 0 if there is none."""
        return max((row["step"] for row in self.rows), default=0)

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
        return summary

    def wait_for_step(self, step: int) -> "Run":
        """Wait until a step is recorded."""
        self.wait_for(lambda: self.step >= step)
        return self

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait until the condition is true. Fail if the run ends before."""
        wait_until(lambda: condition() or self.process.poll() is not None)
        assert condition(), self.output.read_text()

    def send_signal(self, victim: str, signum: signal.Signals) -> None:
        """Send a signal to one process of the run, as the fault."""
        self.mark_fault()
        os.kill(self.pid(victim), signum)

    def wait_for_restart(self) -> None:
        """Wait until the run has started new processes."""
        self.wait_for(lambda: self._read_processes() != self.processes_before)

    def wait_for_recovery(self) -> tuple[float, int]:
        """Wait until the run has reached its step before the fault. Return the seconds and the number of lost steps."""
        self.wait_for_restart()
        log = self.run_dir / "train.log"
        old_log = log.read_text()
        reached = max(_read_steps(old_log))
        self.wait_for(lambda: max(_read_steps(log.read_text()[len(old_log) :]), default=0) >= reached)
        return time.monotonic() - self.fault_at, reached + 1 - _read_steps(log.read_text()[len(old_log) :])[0]

    def wait_for_end(self, seconds: float = 300) -> str:
        """Wait until the command ends. Return its output. The timeout only ends a hang."""
        self.process.wait(seconds)
        return self.output.read_text()


def _read_steps(log: str) -> list[int]:
    """Return the steps that a log reports."""
    return [int(step) for step in re.findall(r"^step (\d+)/", log, re.MULTILINE)]


Start = Callable[..., Run]
RecordFigures = Callable[..., None]


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of all runs of the session, which share a cache."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture
def fault_step(request: pytest.FixtureRequest) -> int:
    """The step at which the fault happens. It depends on the test and the round.

    At least half of the run remains, because the run continues while the test reacts to the step.
    """
    seed = [ROUND, zlib.crc32(request.node.name.encode())]
    return int(np.random.default_rng(seed).integers(FIRST_FAULT_STEP, STEPS // 2))


@pytest.fixture
def record_figures(record_property: Callable[[str, object], None]) -> RecordFigures:
    """Record figures for the table that `make faults` writes."""

    def record(seconds: float | None = None, lost: int | None = None, tried: int = 1) -> None:
        for name, value in (("seconds", seconds), ("lost", lost), ("tried", tried)):
            if value is not None:
                record_property(name, value)

    return record


@pytest.fixture(scope="session")
def reference_rows(base: Path) -> list[dict[str, Any]]:
    """The rows of a run without a fault, whose curve every other run must draw."""
    run = Run(base / "reference", "torch")
    output = run.wait_for_end()
    assert run.process.returncode == 0, output
    return run.rows


@pytest.fixture
def start(base: Path, reference_rows: list[dict[str, Any]], request: pytest.FixtureRequest) -> Iterator[Start]:
    """Start a run. After the test, its command is killed."""
    runs: list[Run] = []

    def start_run(framework: str, *overrides: str, name: str = "", **options: Any) -> Run:
        test = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
        runs.append(Run(base / (name or test), framework, *overrides, **options))
        return runs[-1]

    yield start_run
    for run in runs:
        run.process.kill()
        run.process.wait()


def assert_same_curve(run: Run, reference_rows: list[dict[str, Any]], output: str) -> None:
    """Check that the run has completed and recorded every step once, on the curve of the reference run."""
    assert run.process.returncode == 0, output
    assert run.summary["status"] == "completed"
    assert [row["step"] for row in run.rows] == list(range(1, STEPS + 1))
    for key, tolerance in (("loss", 1e-5), ("grad_norm", 1e-4)):
        assert (
            np.abs([row[key] - reference[key] for row, reference in zip(run.rows, reference_rows, strict=True)]).max()
            <= tolerance
        )
    assert [row["step"] for row in read_rows(run.run_dir / "evals.jsonl")] == [20, 40, 60]


def terminate(run: Run, signum: signal.Signals = signal.SIGTERM) -> None:
    """Send a signal to the command, as a preempted machine does. The run must stop as interrupted."""
    run.process.send_signal(signum)
    output = run.wait_for_end()
    assert run.process.returncode == 128 + signum, output
    assert run.summary["status"] == "interrupted"


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mount a file system in memory of a size in MiB, and return its directory."""
    directories = []

    def mount_disk(mebibytes: int) -> Path:
        directory = tmp_path / f"disk-{mebibytes}"
        directory.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(directory)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")
        directories.append(directory)
        return directory

    yield mount_disk
    for directory in directories:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
