import errno
import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from common.config.schema import Config
from common.errors import UserError
from common.prepare import prepare
from common.run.checkpoint import Checkpoint, Checkpoints, Position, State, best, newest, open_checkpoint, settings
from tests.conftest import MakeConfig

FILES = {"model.safetensors", "optimizer.safetensors", "state.json", "config.json"}
FILES |= {"tokenizer.json", "tokenizer_config.json", "vocab.txt"}


@pytest.fixture
def config(small_config: MakeConfig) -> Config:
    return small_config("train.keep_checkpoints=2")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def checkpoints(config: Config, run_dir: Path) -> Iterator[Checkpoints]:
    _, initial = prepare(config)
    made = Checkpoints(config, run_dir, initial)
    yield made
    made.close()


def state(value: float) -> State:
    return State(
        {"a.weight": np.full((2, 3), value, np.float32)}, {"exp_avg.a.weight": np.full((2, 3), -value, np.float64)}
    )


def save(checkpoints: Checkpoints, step: int, loss: float | None = None) -> Position:
    validation = None if loss is None else {"loss": loss, "accuracy": 0.5}
    position = Position(step, step, 32 * step, 400 * step, 1.5 * step, validation, loss, 1)
    checkpoints.save(state(step), position)
    checkpoints.finish()
    return position


def steps(run_dir: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (run_dir / "checkpoints").iterdir())


def test_what_was_saved_is_loaded(checkpoints: Checkpoints, run_dir: Path) -> None:
    position = save(checkpoints, 7, 0.25)
    checkpoint = open_checkpoint(run_dir / "checkpoints" / "step-00000007")
    assert checkpoint.position == position
    loaded = checkpoint.load()
    assert np.array_equal(loaded.parameters["a.weight"], state(7).parameters["a.weight"])
    assert loaded.slots["exp_avg.a.weight"].dtype == np.float64, "as it was"
    assert {path.name for path in checkpoint.directory.iterdir()} == FILES
    assert newest(run_dir) == checkpoint


def test_a_copy_is_written(checkpoints: Checkpoints, run_dir: Path) -> None:
    """Training goes on while it is."""
    changing = state(1)
    checkpoints.save(changing, Position(1, 1))
    changing.parameters["a.weight"][:] = 99
    changing.slots["exp_avg.a.weight"][:] = 99
    checkpoints.finish()
    checkpoint = newest(run_dir)
    assert checkpoint is not None
    assert checkpoint.load().parameters["a.weight"].max() == 1
    assert checkpoint.load().slots["exp_avg.a.weight"].min() == -1


def test_the_newest_and_the_best_are_kept(checkpoints: Checkpoints, run_dir: Path) -> None:
    assert newest(run_dir) is None and best(run_dir) is None
    for step, loss in ((1, 0.5), (2, 0.3), (3, None), (4, 0.4), (5, 0.6)):
        save(checkpoints, step, loss)
    assert steps(run_dir) == [2, 4, 5]
    assert [found and found.position.step for found in (newest(run_dir), best(run_dir))] == [5, 2]
    for step in (99_999_999, 100_000_000):  # a digit more
        save(checkpoints, step, 0.1)
    assert steps(run_dir) == [99_999_999, 100_000_000]
    found = newest(run_dir)
    assert found is not None and found.position.step == 100_000_000


def test_by_step_and_not_by_time(checkpoints: Checkpoints, run_dir: Path) -> None:
    """A clock that jumps back changes nothing."""
    for step in (1, 2):
        save(checkpoints, step)
    os.utime(run_dir / "checkpoints" / "step-00000002", (0, 0))
    os.utime(run_dir / "checkpoints" / "step-00000002" / "state.json", (0, 0))
    found = newest(run_dir)
    assert found is not None and found.position.step == 2


def test_a_step_that_is_evaluated_later(checkpoints: Checkpoints, run_dir: Path) -> None:
    """A signal came before its evaluation; after it only state.json changes."""
    save(checkpoints, 3)
    weights = run_dir / "checkpoints" / "step-00000003" / "model.safetensors"
    before = weights.stat()
    position = save(checkpoints, 3, 0.2)
    found = newest(run_dir)
    assert found is not None and found.position == position
    assert (weights.stat().st_ino, weights.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def truncate(directory: Path) -> str:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    return "model.safetensors does not match its checksum"


def flip_a_byte(directory: Path) -> str:
    path = directory / "optimizer.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    return "optimizer.safetensors does not match its checksum"


def mix_steps(directory: Path) -> str:
    oldest = min(directory.parent.glob("step-*"))
    shutil.copyfile(oldest / "optimizer.safetensors", directory / "optimizer.safetensors")
    return "optimizer.safetensors does not match its checksum"


def change_the_step(directory: Path) -> str:
    path = directory / "state.json"
    state: dict[str, Any] = json.loads(path.read_text())
    state["position"]["step"] = 3
    path.write_text(json.dumps(state))
    return "state.json does not match its checksum"


def remove_a_file(directory: Path) -> str:
    (directory / "model.safetensors").unlink()
    return "cannot be read"


def empty_state(directory: Path) -> str:
    (directory / "state.json").write_text("")
    return "cannot be read"


@pytest.mark.parametrize(
    "damage", [truncate, flip_a_byte, mix_steps, change_the_step, remove_a_file, empty_state], ids=lambda f: f.__name__
)
def test_a_damaged_one_is_refused_and_the_one_before_it_taken(
    checkpoints: Checkpoints, run_dir: Path, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2):
        save(checkpoints, step)
    directory = run_dir / "checkpoints" / "step-00000002"
    problem = damage(directory)
    with pytest.raises(UserError) as raised:
        open_checkpoint(directory)
    assert str(raised.value).startswith(f"{directory}: {problem}")
    with caplog.at_level(logging.WARNING, "lockstep"):
        found = newest(run_dir)
    assert found is not None and found.position.step == 1
    assert problem in caplog.text
    save(checkpoints, 2)  # trained again
    found = newest(run_dir)
    assert found is not None and found.position.step == 2


def test_what_a_killed_writer_leaves_is_no_checkpoint(checkpoints: Checkpoints, run_dir: Path, config: Config) -> None:
    save(checkpoints, 1)
    directory = run_dir / "checkpoints"
    shutil.copytree(directory / "step-00000001", directory / "step-00000002.partial")
    found = newest(run_dir)
    assert found is not None and found.position.step == 1
    _, initial = prepare(config)
    Checkpoints(config, run_dir, initial).close()
    assert steps(run_dir) == [1], "the next run of the directory clears it away"


def test_a_failure_to_write_is_raised(checkpoints: Checkpoints, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    save(checkpoints, 1)
    monkeypatch.setattr("common.run.checkpoint.save_file", fail)
    checkpoints.save(state(2), Position(2, 2))
    with pytest.raises(UserError, match=r"step-00000002: cannot be written \(No space left on device\); make space"):
        checkpoints.finish()
    monkeypatch.undo()
    found = newest(run_dir)
    assert found is not None and found.position.step == 1
    save(checkpoints, 2)  # there is space again
    found = newest(run_dir)
    assert found is not None and found.position.step == 2


def test_of_another_format(checkpoints: Checkpoints, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(checkpoints, 1)
    monkeypatch.setattr("common.run.checkpoint.FORMAT", 2)
    with pytest.raises(UserError, match="of format 1, and this Lockstep reads 2$"):
        open_checkpoint(run_dir / "checkpoints" / "step-00000001")


def test_settings_are_what_decides_the_curve(small_config: MakeConfig) -> None:
    before = settings(small_config(), "data")
    for same in ("strategy=ddp", "train.steps=7", "run_dir=x", "train.log_every=1", "cluster.timeout=3"):
        assert settings(small_config(same), "data") == before, same
    for other in ("optimizer.beta1=0.8", "train.seed=1", "schedule=cosine", "train.global_batch_size=8"):
        assert settings(small_config(other), "data") != before, other
    assert settings(small_config(), "other data") != before


def test_it_is_a_model_directory(checkpoints: Checkpoints, run_dir: Path, config: Config) -> None:
    save(checkpoints, 1)
    checkpoint = newest(run_dir)
    assert isinstance(checkpoint, Checkpoint)
    assert json.loads((checkpoint.directory / "config.json").read_text())["model_type"] == "bert"
    assert set(load_file(checkpoint.directory / "model.safetensors")) == {"a.weight"}
