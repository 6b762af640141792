"""Runs to which a fault is done, found through what they record of themselves, and how long they take to recover."""

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
from tests.conftest import wait_until

ROOT = Path(__file__).parents[2]
ROUND = int(os.environ.get("FAULTS_ROUND", 0))  # `make faults` has several, each at other moments
STEPS, CHECKPOINT_EVERY = 60, 10
# An epoch is 10 steps. Single steps are recorded, so that a fault can be timed by them.
CORPUS = ("data.train_examples=300", "data.validation_examples=60")
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
    """A run's command, under way. command: the actual one, given the usual one."""

    def __init__(
        self,
        run_dir: Path,
        framework: str,
        *overrides: str,
        command: Callable[[list[str]], Sequence[str]] = tuple,
        **environment: str,
    ) -> None:
        places = {"run_dir": str(run_dir), "cache_dir": str(run_dir.parent / "cache")}
        places |= {key: value for key, _, value in (each.partition("=") for each in overrides) if key in places}
        self.run_dir = Path(places["run_dir"])
        self.mark()
        corpus = () if "data=files" in overrides else CORPUS
        arguments = [*corpus, *SHARED, *overrides, *(f"{key}={value}" for key, value in places.items())]
        # not a pipe, which fills up while nobody reads it and so stops the run
        with NamedTemporaryFile("w", dir=run_dir.parent, prefix=f"{run_dir.name}-", delete=False) as output:
            self.output = Path(output.name)
            self.process = subprocess.Popen(
                command([sys.executable, "-m", f"{framework}_impl.train", *arguments]),
                cwd=run_dir.parent,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def mark(self) -> None:
        """Now the fault happens, from which `restarted` and `recover` count."""
        self.before, self.since = self._processes(), time.monotonic()

    def _processes(self) -> str | None:
        path = self.run_dir / "processes.json"
        return path.read_text() if path.exists() else None

    def pid(self, name: str) -> int:
        """The id of a process, as the run recorded it."""
        pids: dict[str, int] = json.loads((self.run_dir / "processes.json").read_text())
        return pids[name]

    @property
    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = read_rows(self.run_dir / "metrics.jsonl")
        return rows

    @property
    def step(self) -> int:
        """The last one that is recorded."""
        return max((row["step"] for row in self.rows), default=0)

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
        return summary

    def at(self, step: int) -> "Run":
        """Wait until a step is recorded."""
        self.wait(lambda: self.step >= step)
        return self

    def wait(self, true: Callable[[], Any]) -> None:
        """Wait until something is true of the run; fails where the run ends before it is."""
        wait_until(lambda: true() or self.process.poll() is not None, 120)
        assert true(), self.output.read_text()

    def strike(self, victim: str, signum: signal.Signals) -> None:
        """Send a signal to one of its processes."""
        self.mark()
        os.kill(self.pid(victim), signum)

    def restarted(self) -> float:
        """Wait until it has started processes again. Returns the seconds since the fault, or since it began."""
        self.wait(lambda: self._processes() != self.before)
        return time.monotonic() - self.since

    def recover(self) -> tuple[float, int]:
        """Wait until it is where it was. Returns the seconds that took, and how many steps it had to make again."""
        self.restarted()
        log = self.run_dir / "train.log"
        old = len(log.read_text())
        reached = max(_steps(log.read_text()))
        self.wait(lambda: max(_steps(log.read_text()[old:]), default=0) >= reached)
        return time.monotonic() - self.since, reached + 1 - _steps(log.read_text()[old:])[0]

    def end(self, seconds: float = 180) -> str:
        """Wait for its end. Returns what it said."""
        self.process.wait(seconds)
        return self.output.read_text()


def _steps(said: str) -> list[int]:
    return [int(step) for step in re.findall(r"^step (\d+)/", said, re.MULTILINE)]


Start = Callable[..., Run]
Measured = Callable[..., None]


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture
def moment(request: pytest.FixtureRequest) -> int:
    """The step at which it happens."""
    seed = [ROUND, zlib.crc32(request.node.name.encode())]
    return int(np.random.default_rng(seed).integers(12, 40))


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Measured:
    """Put figures into the table that `make faults` makes."""

    def record(seconds: float | None = None, lost: int | None = None, tried: int = 1) -> None:
        for name, value in (("seconds", seconds), ("lost", lost), ("tried", tried)):
            if value is not None:
                record_property(name, value)

    return record


@pytest.fixture(scope="session")
def undisturbed(base: Path) -> list[dict[str, Any]]:
    """The curve that all of them must draw."""
    run = Run(base / "undisturbed", "torch")
    said = run.end()
    assert run.process.returncode == 0, said
    return run.rows


@pytest.fixture
def start(base: Path, undisturbed: list[dict[str, Any]], request: pytest.FixtureRequest) -> Iterator[Start]:
    """Start a run; nothing of it is left afterwards."""
    runs: list[Run] = []

    def begin(framework: str, *overrides: str, name: str = "", **others: Any) -> Run:
        test = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
        runs.append(Run(base / (name or test), framework, *overrides, **others))
        return runs[-1]

    yield begin
    for run in runs:
        run.process.kill()
        run.process.wait()


def assert_undisturbed(run: Run, undisturbed: list[dict[str, Any]], said: str) -> None:
    """Completed, every step recorded once, on the curve of a run that nothing happened to."""
    assert run.process.returncode == 0, said
    assert run.summary["status"] == "completed"
    assert [row["step"] for row in run.rows] == list(range(1, STEPS + 1))
    for key, tolerance in (("loss", 1e-5), ("grad_norm", 1e-4)):
        assert np.abs([row[key] - one[key] for row, one in zip(run.rows, undisturbed, strict=True)]).max() <= tolerance
    assert [row["step"] for row in read_rows(run.run_dir / "evals.jsonl")] == [20, 40, 60]


def terminate(run: Run, signum: signal.Signals = signal.SIGTERM) -> None:
    """As a preempted machine does."""
    asked = time.monotonic()
    run.process.send_signal(signum)
    said = run.end(30)
    assert time.monotonic() - asked < 10
    assert run.process.returncode == 128 + signum, said
    assert run.summary["status"] == "interrupted"


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Make a file system in memory, of so many MiB."""
    mounted = []

    def make(mebibytes: int) -> Path:
        place = tmp_path / f"disk-{mebibytes}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(place)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")
        mounted.append(place)
        return place

    yield make
    for place in mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
