import json
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import pytest

from common.config import schema as configs
from common.config.schema import Config
from common.errors import UserError
from common.run.checkpoint import Position
from common.run.directory import Recorder, facts, new_run_dir, read_rows, write_summary
from tests.conftest import MakeConfig, Python

NAME = re.compile(r"\d{8}-\d{6}-")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """runs/ is made in the working directory."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def step(number: int, seconds: float, **values: float) -> dict[str, Any]:
    """A row of metrics.jsonl: 4 examples and 40 tokens a step."""
    row = {"step": number, "loss": 1 / number, "examples": 4 * number, "tokens": 40 * number}
    return {**row, "learning_rate": 1e-3, "grad_norm": 2.0, "seconds": seconds, **values}


def evaluation(number: int, duration: float = 0.0, accuracy: float = 0.5) -> dict[str, Any]:
    row = {"step": number, "examples": 4 * number, "loss": 0.7, "accuracy": accuracy, "count": 12}
    return {**row, "duration": duration}


# The directory


def test_a_run_has_its_own_directory(make_config: MakeConfig, here: Path) -> None:
    config = make_config("strategy=ddp", "strategy.replicas=3")
    with new_run_dir(config, "torch") as run_dir:
        assert run_dir.is_dir()
        assert config.run_dir == str(run_dir)
        assert configs.load(run_dir / "config.yaml") == config
    assert run_dir.parent == Path("runs")
    assert NAME.sub("", run_dir.name) == "torch-ddp"
    with new_run_dir(make_config("run_name=try it"), "torch") as run_dir:
        assert NAME.sub("", run_dir.name) == "try it"


def test_a_name_that_is_taken(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    class Noon(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Self:
            return cls(2026, 1, 2, 12)

    monkeypatch.setattr("common.run.directory.datetime", Noon)
    names = []
    for _ in range(3):
        with new_run_dir(make_config("run_name=n"), "tf") as run_dir:
            names.append(run_dir.name)
    assert names == ["20260102-120000-n", "20260102-120000-n-2", "20260102-120000-n-3"]


@pytest.mark.parametrize("exists", [False, True])
def test_a_directory_that_is_named(make_config: MakeConfig, tmp_path: Path, exists: bool) -> None:
    wanted = tmp_path / "a" / "b"
    if exists:
        wanted.mkdir(parents=True)
    with new_run_dir(make_config(f"run_dir={wanted}"), "torch") as run_dir:
        assert run_dir == wanted
    assert sorted(path.name for path in wanted.iterdir()) == [".lock", "config.yaml"]
    with pytest.raises(UserError, match=f"^run_dir={wanted}: is not empty; a run has a directory of its own, choose"):
        new_run_dir(make_config(f"run_dir={wanted}"), "torch").__enter__()


def a_file(path: Path) -> str:
    (path / "file").touch()
    return f"run_dir={path / 'file'}"


def below_a_file(path: Path) -> str:
    return a_file(path) + "/run"


def runs_is_a_file(path: Path) -> str:
    Path("runs").touch()
    return "run_name=n"


@pytest.mark.parametrize("place", [a_file, below_a_file, runs_is_a_file])
def test_a_place_that_cannot_be_written(make_config: MakeConfig, tmp_path: Path, place: Callable[[Path], str]) -> None:
    config = make_config(place(tmp_path))
    with pytest.raises(UserError) as raised, new_run_dir(config, "torch"):
        pass
    named = re.escape(config.run_dir or "runs/")
    assert re.match(rf"run_dir={named}.*: cannot be written \([\w ]+\); give run_dir=PATH$", str(raised.value))


def test_it_is_taken_away_again_on_a_users_error(make_config: MakeConfig) -> None:
    with pytest.raises(UserError, match="^no such file$"), new_run_dir(make_config(), "torch"):
        raise UserError("no such file")
    assert not Path("runs").exists()
    with pytest.raises(UserError), new_run_dir(make_config(), "torch") as run_dir:
        (run_dir / "kept").touch()
        raise UserError("no such file")
    assert sorted(path.name for path in run_dir.iterdir()) == [".lock", "config.yaml", "kept"]


# The files


@pytest.fixture
def config(make_config: MakeConfig) -> Config:
    return make_config("train.warmup_steps_untimed=2", "strategy.replicas=1")


@pytest.fixture
def run_dir(config: Config, tmp_path: Path) -> Path:
    config.run_dir = str(tmp_path / "run")
    with new_run_dir(config, "torch") as run_dir:
        return run_dir


def record(run_dir: Path, steps: list[dict[str, Any]], evals: list[dict[str, Any]]) -> None:
    recorder = Recorder(run_dir, Position())
    recorder.steps(steps[:2])
    recorder.steps(steps[2:])
    for row in evals:
        recorder.evaluation(row)
    recorder.close()


def test_losses_at_full_precision(run_dir: Path) -> None:
    rows = [step(1, 0.1, loss=0.1 + 0.2, grad_norm=1e-17 / 3), step(2, 0.2, loss=1 / 3)]
    record(run_dir, rows, [evaluation(2, accuracy=2 / 3)])
    assert read_rows(run_dir / "metrics.jsonl") == rows
    assert read_rows(run_dir / "evals.jsonl") == [evaluation(2, accuracy=2 / 3)]


def test_rows_are_there_as_soon_as_they_are_recorded(run_dir: Path) -> None:
    recorder = Recorder(run_dir, Position())
    recorder.steps([step(1, 0.1)])
    recorder.evaluation(evaluation(1))
    assert len(read_rows(run_dir / "metrics.jsonl")) == len(read_rows(run_dir / "evals.jsonl")) == 1
    recorder.close()


@pytest.mark.parametrize(("left", "rows"), [('{"a": 1}\n{"a": 2}\n{"a"', 2), ('{"a": 1}', 0), ("", 0), (None, 0)])
def test_a_line_that_a_killed_writer_left_unfinished(tmp_path: Path, left: str | None, rows: int) -> None:
    path = tmp_path / "metrics.jsonl"
    if left is not None:
        path.write_text(left)
    assert read_rows(path) == [{"a": number} for number in range(1, rows + 1)]


def test_tensorboard_reads_the_events(run_dir: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record(run_dir, [step(number, 0.1 * number) for number in (1, 2, 3)], [evaluation(3)])
    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    scalars = {
        tag: [(event.step, pytest.approx(event.value)) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }
    assert scalars == {
        "train/loss": [(1, 1.0), (2, 0.5), (3, 1 / 3)],
        "train/learning_rate": [(1, 1e-3), (2, 1e-3), (3, 1e-3)],
        "train/grad_norm": [(1, 2.0), (2, 2.0), (3, 2.0)],
        "validation/loss": [(3, 0.7)],
        "validation/accuracy": [(3, 0.5)],
    }


def test_recording_imports_no_framework(run_dir: Path, python: Python) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from common.run.checkpoint import Position; from common.run.directory import Recorder\n"
        "recorder = Recorder(Path(sys.argv[1]), Position())\n"
        "recorder.steps([dict(step=1, loss=1.0, learning_rate=1.0, grad_norm=1.0)])\n"
        "recorder.close()\n"
        "print([name for name in ('torch', 'tensorflow', 'keras', 'transformers') if name in sys.modules])\n"
    )
    assert python(code, run_dir) == "[]\n"
    assert list((run_dir / "tensorboard").iterdir())


# The summary


def summary(run_dir: Path, config: Config, status: str = "completed", error: str | None = None) -> dict[str, Any]:
    about = facts(config, "torch", {"token_cache": "1", "initial_weights": "2"})
    written = write_summary(run_dir, about, status, {"peak_memory_bytes": [5, 6]}, error)
    assert json.loads((run_dir / "summary.json").read_text()) == written
    assert not list(run_dir.glob("*.partial"))
    return written


def test_summary(run_dir: Path, config: Config) -> None:
    record(run_dir, [step(number, float(number)) for number in (1, 2, 3, 4)], [evaluation(2), evaluation(4, 0.0, 0.75)])
    found = summary(run_dir, config)
    assert {
        "framework": "torch",
        "strategy": "single",
        "replicas": 1,
        "status": "completed",
        "steps": 4,
        "examples_per_second": 4.0,
        "tokens_per_second": 40.0,
        "peak_memory_bytes": [5, 6],
        "final_loss": 0.25,
        "accuracy": 0.75,
        "fingerprints": {"token_cache": "1", "initial_weights": "2"},
    }.items() <= found.items()
    assert "error" not in found
    assert {"python", "lockstep", "numpy", "torch", "transformers"} == found["versions"].keys()
    assert found["hardware"]["cores"] >= 1


@pytest.mark.parametrize(
    ("steps", "evals", "expected"),
    [
        ([9.0, 10.0, 10.5, 11.0], [], 8.0),  # the two untimed steps are left out
        ([9.0, 10.0, 15.5, 16.0], [evaluation(2, 5.0)], 8.0),  # so is an evaluation between timed steps,
        ([9.0, 10.0, 10.5, 16.0], [evaluation(3, 5.0)], 8.0),
        ([9.0, 10.0, 10.5, 11.0], [evaluation(1, 8.0), evaluation(4, 7.0)], 8.0),  # and one that was not among them
        ([9.0, 10.0], [], None),
        ([], [], None),
        ([9.0, 10.0, 10.0], [], None),  # no time passed
    ],
)
def test_speed(
    run_dir: Path, config: Config, steps: list[float], evals: list[dict[str, Any]], expected: float | None
) -> None:
    record(run_dir, [step(number, seconds) for number, seconds in enumerate(steps, 1)], evals)
    found = summary(run_dir, config)
    assert found["examples_per_second"] == (expected and pytest.approx(expected))
    assert found["tokens_per_second"] == (expected and pytest.approx(10 * expected))


def test_speed_without_untimed_steps(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config("train.warmup_steps_untimed=0", "strategy.replicas=1", f"run_dir={tmp_path / 'run'}")
    with new_run_dir(config, "torch") as run_dir:
        pass
    record(run_dir, [step(1, 1.0), step(2, 4.0)], [evaluation(1, 2.0)])
    assert summary(run_dir, config)["examples_per_second"] == pytest.approx(8 / 2)


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_summary_of_a_run_that_did_not_complete(run_dir: Path, config: Config, status: str) -> None:
    found = summary(run_dir, config, status, "rank 1 ended with exit code 3")
    assert (found["status"], found["steps"], found["error"]) == (status, 0, "rank 1 ended with exit code 3")
    assert (found["final_loss"], found["accuracy"], found["examples_per_second"]) == (None, None, None)
