"""What a run survives, each fault really done to it: `make test-faults`."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from common.checkpoint import newest
from common.record import read_rows
from tests.conftest import wait_until

pytestmark = pytest.mark.faults

ROOT = Path(__file__).parents[1]
STEPS, KILL_AT = 60, 25
# An epoch is 10 steps. Single steps are recorded, so that a fault can be timed by them.
CORPUS = ["data.train_examples=300", "data.validation_examples=60"]
SHARED = [f"train.steps={STEPS}", "train.log_every=1"]
SHARED += ["train.checkpoint_every=10", "train.eval_every=20", "cluster.timeout=20", "optimizer.learning_rate=1e-3"]
DDP = ("torch", "strategy=ddp", "strategy.replicas=2")
MULTIWORKER = ("tf", "strategy=multiworker", "strategy.workers=2")
SERVERS = ("strategy=parameter_server", "strategy.workers=2", "strategy.parameter_servers=2")
SYNCHRONOUS = "strategy.max_staleness=0"


class Run:
    """A run's command, under way."""

    def __init__(self, run_dir: Path, framework: str, *overrides: str) -> None:
        self.run_dir = run_dir
        corpus = [] if "data=files" in overrides else CORPUS
        command = [sys.executable, "-m", f"{framework}_impl.train", *corpus, *SHARED, *overrides]
        places = [f"run_dir={run_dir}", f"cache_dir={run_dir.parent / 'cache'}"]
        named = {override.partition("=")[0] for override in overrides}
        self.process = subprocess.Popen(
            [*command, *(each for each in places if each.partition("=")[0] not in named)],
            cwd=run_dir.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    @property
    def steps(self) -> list[int]:
        return [row["step"] for row in read_rows(self.run_dir / "metrics.jsonl")]

    def at(self, step: int) -> "Run":
        """Wait until a step is recorded."""
        wait_until(lambda: self.steps[-1:] >= [step] or self.process.poll() is not None, 120)
        assert self.process.poll() is None, self.process.communicate()[0]
        return self

    def pid(self, name: str) -> int:
        """The id of a process, as the run recorded it."""
        pids: dict[str, int] = json.loads((self.run_dir / "processes.json").read_text())
        return pids[name]

    def end(self, seconds: float = 180) -> str:
        """Wait for its end. Returns what it said."""
        return self.process.communicate(timeout=seconds)[0]

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
        return summary


Start = Callable[..., Run]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def undisturbed(base: Path) -> list[dict[str, Any]]:
    """The curve that all of them must draw."""
    run = Run(base / "undisturbed", "torch")
    said = run.end()
    assert run.process.returncode == 0, said
    return read_rows(run.run_dir / "metrics.jsonl")


@pytest.fixture
def start(base: Path, undisturbed: list[dict[str, Any]], request: pytest.FixtureRequest) -> Iterator[Start]:
    """Start a run; nothing of it is left afterwards."""
    runs: list[Run] = []

    def begin(framework: str, *overrides: str, name: str = "") -> Run:
        test = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
        runs.append(Run(base / (name or test), framework, *overrides))
        return runs[-1]

    yield begin
    for run in runs:
        run.process.kill()
        run.process.wait()


def assert_undisturbed(run: Run, undisturbed: list[dict[str, Any]], said: str) -> None:
    """Completed, every step recorded once, on the curve of a run that nothing happened to."""
    assert run.process.returncode == 0, said
    assert run.summary["status"] == "completed"
    rows = read_rows(run.run_dir / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    for key, tolerance in (("loss", 1e-5), ("grad_norm", 1e-4)):
        assert np.abs([row[key] - one[key] for row, one in zip(rows, undisturbed, strict=True)]).max() <= tolerance
    assert [row["step"] for row in read_rows(run.run_dir / "evals.jsonl")] == [20, 40, 60]


@pytest.mark.parametrize(
    ("kind", "victim"),
    [
        (DDP, "rank 1"),
        (DDP, "rank 0"),
        (MULTIWORKER, "worker 1"),
        (("torch", *SERVERS, SYNCHRONOUS), "rank 1"),  # a server
        (("torch", *SERVERS, SYNCHRONOUS), "rank 4"),  # a worker
        (("tf", *SERVERS, SYNCHRONOUS), "ps 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value[:2]),
)
def test_a_killed_process_starts_the_group_again(
    start: Start, undisturbed: list[dict[str, Any]], kind: tuple[str, ...], victim: str
) -> None:
    run = start(*kind, "train.max_restarts=2").at(KILL_AT)
    os.kill(run.pid(victim), signal.SIGKILL)
    assert_undisturbed(run, undisturbed, run.end())
    assert run.summary["restarts"] == 1 and run.summary["resumed_from"] >= 10  # that of step 20 may be under way


@pytest.mark.parametrize(("kind", "victim"), [(DDP, "rank 1"), (MULTIWORKER, "worker 1")], ids=["ddp", "multiworker"])
def test_a_stopped_process_is_noticed_and_named(
    start: Start, undisturbed: list[dict[str, Any]], kind: tuple[str, ...], victim: str
) -> None:
    run = start(*kind, "train.max_restarts=1").at(KILL_AT)
    os.kill(run.pid(victim), signal.SIGSTOP)
    stopped = time.monotonic()
    wait_until(lambda: run.summary["restarts"] == 1 if (run.run_dir / "summary.json").exists() else False, 120)
    said = run.end()
    assert f"{victim} has been stopped" in said  # for 10 s, unless the others notice first
    assert time.monotonic() - stopped < 100
    assert_undisturbed(run, undisturbed, said)


@pytest.mark.parametrize(("framework", "strategy"), [("torch", "ddp"), ("tf", "mirrored")])
def test_a_killed_run_goes_on(start: Start, undisturbed: list[dict[str, Any]], framework: str, strategy: str) -> None:
    kind = (framework, f"strategy={strategy}", "strategy.replicas=2")
    run = start(*kind).at(KILL_AT)
    children = psutil.Process(run.process.pid).children(recursive=True)
    run.process.kill()
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
    run.end()
    again = start(*kind, "resume=auto", name=run.run_dir.name)
    assert_undisturbed(again, undisturbed, again.end())
    assert again.summary["resumed_from"] in (10, 20)  # that of step 20 may have been under way


def terminate(run: Run) -> None:
    """As a preempted machine does."""
    asked = time.monotonic()
    run.process.send_signal(signal.SIGTERM)
    said = run.end(30)
    assert time.monotonic() - asked < 10
    assert run.process.returncode == 143, said
    assert run.summary["status"] == "interrupted"


@pytest.mark.parametrize(
    ("framework", "strategy"),
    [
        ("torch", "ddp"),
        ("tf", "mirrored"),
        ("tf", "multiworker"),
        ("torch", "parameter_server"),
        ("tf", "parameter_server"),
    ],
)
def test_a_terminated_run_saves_its_step_and_goes_on(
    start: Start, undisturbed: list[dict[str, Any]], framework: str, strategy: str
) -> None:
    kind = (framework, f"strategy={strategy}", *([SYNCHRONOUS] if strategy == "parameter_server" else []))
    run = start(*kind).at(KILL_AT)
    terminate(run)
    checkpoint = newest(run.run_dir)
    assert checkpoint is not None and checkpoint.position.step == run.steps[-1] >= KILL_AT
    again = start(*kind, "resume=auto", name=run.run_dir.name)
    assert_undisturbed(again, undisturbed, again.end())
    assert again.summary["resumed_from"] == checkpoint.position.step


@pytest.mark.parametrize("framework", ["torch", "tf"])
def test_terminated_in_an_evaluation(start: Start, framework: str) -> None:
    """Which takes long here; its step is saved, and the evaluation made up for."""
    long = ("model=bert_small", "data.validation_examples=4000", "train.steps=30", "train.eval_every=20")
    run = start(framework, *long).at(20)
    time.sleep(1)
    terminate(run)
    checkpoint = newest(run.run_dir)
    assert checkpoint is not None and checkpoint.position.step == 20 and checkpoint.position.validation is None
    assert not read_rows(run.run_dir / "evals.jsonl")


@pytest.mark.parametrize("seconds", [0.5, 2, 4, 6, 8])
@pytest.mark.parametrize("framework", ["torch", "tf"])
def test_terminated_while_it_starts(start: Start, framework: str, seconds: float) -> None:
    run = start(framework, "train.steps=1000000", name=f"starting-{framework}-{seconds}")
    wait_until(lambda: (run.run_dir / "config.yaml").exists(), 60)
    time.sleep(seconds)
    terminate(run)


def test_terminated_while_it_builds_the_cache(start: Start, base: Path) -> None:
    corpus = base / "corpus.jsonl"
    with corpus.open("w") as file:
        for number in range(300_000):
            row = {"premise": f"Number {number} is here.", "hypothesis": f"{number} is not.", "label": number % 3}
            file.write(json.dumps(row) + "\n")
    data = ("data=files", f"data.train={corpus}", f"data.validation={corpus}", f"cache_dir={base / 'other-cache'}")
    run = start("torch", *data)
    wait_until(lambda: list((base / "other-cache").glob("tokens-*.partial")), 60)
    time.sleep(1)
    terminate(run)
    assert not list((base / "other-cache").glob("*.partial"))
    (base / "corpus.jsonl").unlink()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize(("framework", "worker"), [("torch", "rank 4"), ("tf", "worker 1")], ids=["torch", "tf"])
def test_a_worker_comes_back_to_the_parameter_servers(
    start: Start, framework: str, worker: str, signum: signal.Signals
) -> None:
    """No batch is lost; none counts twice in PyTorch, and one that does in TensorFlow is reported."""
    steps = 700 if framework == "torch" else 350
    run = start(framework, *SERVERS, f"train.steps={steps}", "train.eval_every=null", "schedule=constant").at(100)
    pid = run.pid(worker)
    os.kill(pid, signum)
    said = run.end(240)
    assert run.process.returncode == 0, said
    assert worker in said and "starting it again" in said
    assert run.pid(worker) != pid
    rows = read_rows(run.run_dir / "metrics.jsonl")
    done = [(row["batch"], row["part"]) for row in rows]
    assert sorted(done) == [(batch, part) for batch in range(1, steps + 1) for part in (0, 1)]
    assert run.summary["version"] == len(rows) + len(run.summary.get("doubled_updates", []))
    assert run.summary["restarts"] == 0
    assert {row["worker"] for row in rows[-100:]} == {0, 1}  # it has come back


WRITER = """
import sys
from pathlib import Path
import numpy as np
from common.checkpoint import Checkpoints, Position, State
from common.config import load
from common.start import find_start

config = load(Path(sys.argv[1]) / "config.yaml")
_, initial, checkpoint = find_start(config)
checkpoints = Checkpoints(config, Path(sys.argv[1]), initial)
first = checkpoint.position.step if checkpoint else 0
for step in range(first + 1, first + 1000):
    state = State({"a": np.full(2_000_000, step, np.float32)}, {"exp_avg.a": np.full(2_000_000, step, np.float32)})
    checkpoints.save(state, Position(step, step))
    checkpoints.finish()
    print(step, flush=True)
"""


def test_killed_while_it_writes_a_checkpoint(start: Start) -> None:
    """At 20 random moments: what was finished is there, and what is there is whole."""
    run = start("torch", "train.steps=1", "train.checkpoint_every=null", "train.keep_checkpoints=2")
    assert run.end() and run.process.returncode == 0
    shutil.rmtree(run.run_dir / "checkpoints")
    command = [sys.executable, "-c", WRITER, str(run.run_dir)]
    moments = np.random.default_rng(0).uniform(0, 0.3, 20)
    finished = 0
    for moment in moments:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
            assert writer.stdout is not None
            finished = int(writer.stdout.readline())  # it is under way
            time.sleep(moment)
            writer.kill()
            finished = max([finished, *map(int, writer.stdout.read().split())])
        checkpoint = newest(run.run_dir)
        assert checkpoint is not None and checkpoint.position.step in (finished, finished + 1)
        state = checkpoint.load()
        assert (state.parameters["a"] == checkpoint.position.step).all()
        assert (state.slots["exp_avg.a"] == checkpoint.position.step).all()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Make a file system of so many MiB."""
    mounted = []

    def mount(mebibytes: int) -> Path:
        place = tmp_path / f"disk-{mebibytes}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(place)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_the_disk_is_full_while_it_trains(start: Start, small_disk: Callable[[int], Path]) -> None:
    """Of checkpoints, here; what was written before is intact, and once there is space the run goes on."""
    run_dir = small_disk(24) / "run"
    often = ("train.checkpoint_every=5", "train.keep_checkpoints=99", "train.steps=60")
    run = start("torch", *often, f"run_dir={run_dir}")
    said = run.end()
    assert run.process.returncode == 1
    assert "No space left on device" in said.splitlines()[-1] and "Traceback" not in said
    rows = read_rows(run_dir / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    checkpoint = newest(run_dir)
    assert checkpoint is not None and checkpoint.position.step >= 5
    assert not list((run_dir / "checkpoints").glob("*.partial"))
    shutil.rmtree(run_dir / "checkpoints" / "step-00000005")
    (run_dir / "summary.json").unlink(missing_ok=True)
    again = start(
        "torch", *often[:1], "train.keep_checkpoints=1", "train.steps=60", "resume=auto", f"run_dir={run_dir}"
    )
    said = again.end()
    assert again.process.returncode == 0, said
    assert [row["step"] for row in read_rows(run_dir / "metrics.jsonl")] == list(range(1, 61))


def test_the_disk_is_full_of_metrics(start: Start, small_disk: Callable[[int], Path]) -> None:
    place = small_disk(12)
    run_dir = place / "run"
    run = start("torch", "train.checkpoint_every=null", "train.steps=1000000", f"run_dir={run_dir}")
    wait_until(lambda: (run_dir / "metrics.jsonl").exists() and len(read_rows(run_dir / "metrics.jsonl")) > 5, 60)
    with contextlib.suppress(OSError), (place / "filler").open("wb") as filler:
        while True:
            filler.write(b"x" * 4096)
            filler.flush()
    said = run.end(60)
    assert run.process.returncode == 1
    assert "cannot be written (No space left on device)" in said and "Traceback" not in said, said
    rows = read_rows(run_dir / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))


def test_the_disk_is_full_of_the_cache(start: Start, small_disk: Callable[[int], Path]) -> None:
    place = small_disk(1)
    run = start("torch", "data.train_examples=24000", f"cache_dir={place / 'cache'}")
    said = run.end()
    assert run.process.returncode == 2
    assert "cache_dir=" in said and "cannot be written" in said and said.count("\n") == 2, said
    assert not list((place / "cache").glob("tokens-*.partial"))


def test_two_runs_of_one_directory(start: Start) -> None:
    run = start(*DDP, "train.steps=1000000", name="shared").at(5)
    second = start(*DDP, "resume=auto", name="shared")
    said = second.end(60)
    assert second.process.returncode == 2
    assert "another run is using it" in said and said.count("\n") == 1
    run.at(run.steps[-1] + 5)
