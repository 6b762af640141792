import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from common.config.schema import Config
from common.errors import UserError
from common.run.checkpoint import Checkpoint, find_best_checkpoint, find_newest_checkpoint
from common.run.checkpoint_writer import CheckpointWriter
from common.run.context import RunContext
from common.run.inputs import open_inputs, save_inputs
from common.training.state import Position, Score
from tests.unit.common.run.conftest import make_state, save_step


def steps(run_dir: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (run_dir / "checkpoints").iterdir())


def test_a_copy_is_written(checkpoints: CheckpointWriter, run_dir: Path) -> None:
    """Training may change the state while the checkpoint is written."""
    changing = make_state(1)
    checkpoints.save(changing, Position(1, 1))
    changing.weights["a.weight"][:] = 99
    changing.slots["exp_avg.a.weight"][:] = 99
    checkpoints.finish()
    checkpoint = find_newest_checkpoint(run_dir)
    assert checkpoint is not None
    assert checkpoint.load().weights["a.weight"].max() == 1
    assert checkpoint.load().slots["exp_avg.a.weight"].min() == -1


def test_the_newest_and_the_best_are_kept(checkpoints: CheckpointWriter, run_dir: Path) -> None:
    assert find_newest_checkpoint(run_dir) is None and find_best_checkpoint(run_dir) is None
    for step, loss in ((1, 0.5), (2, 0.3), (3, None), (4, 0.4), (5, 0.6)):
        save_step(checkpoints, step, loss)
    assert steps(run_dir) == [2, 4, 5]
    assert [
        checkpoint and checkpoint.position.step
        for checkpoint in (find_newest_checkpoint(run_dir), find_best_checkpoint(run_dir))
    ] == [5, 2]
    for step in (99_999_999, 100_000_000):  # the second step has one more digit
        save_step(checkpoints, step, 0.1)
    assert steps(run_dir) == [99_999_999, 100_000_000]
    newest = find_newest_checkpoint(run_dir)
    assert newest is not None and newest.position.step == 100_000_000


def test_the_best_by_another_metric(checkpoints: CheckpointWriter, run_dir: Path) -> None:
    """Only the checkpoints with the metric of the newest one count: a resume may change it."""
    scores: list[tuple[str, float]] = [("loss", 0.1), ("f1", -0.5), ("f1", -0.9), ("f1", float("nan")), ("f1", -0.6)]
    for step, (metric, value) in enumerate(scores, 1):
        score = None if metric == "loss" else Score(metric=metric, value=value)
        checkpoints.save(make_state(step), Position(step, step, step, validation={"loss": 0.1}, score=score))
        checkpoints.finish()
    best = find_best_checkpoint(run_dir)
    assert best is not None and best.position.score == {"metric": "f1", "value": -0.9}
    assert steps(run_dir) == [3, 4, 5]


def test_a_process_is_started_again_after_its_checkpoint_was_removed(
    checkpoints: CheckpointWriter, run_dir: Path, context: RunContext
) -> None:
    """A worker of a parameter server may start again like this. It gets the parameters from the servers."""
    save_step(checkpoints, 1)
    started = replace(context.inputs, checkpoint=find_newest_checkpoint(run_dir))
    save_inputs(started, run_dir)
    assert open_inputs(context.config, run_dir).start.step == 1
    resumed = CheckpointWriter(replace(context, inputs=started))
    for step in (2, 3, 4):
        save_step(resumed, step)
    resumed.close()
    assert 1 not in steps(run_dir)
    assert open_inputs(context.config, run_dir).checkpoint is None


def test_a_step_that_is_evaluated_later(checkpoints: CheckpointWriter, run_dir: Path) -> None:
    """A signal arrives before the evaluation of the step. The evaluation later changes only state.json."""
    save_step(checkpoints, 3)
    weights = run_dir / "checkpoints" / "step-00000003" / "model.safetensors"
    before = weights.stat()
    position = save_step(checkpoints, 3, 0.2)
    newest = find_newest_checkpoint(run_dir)
    assert newest is not None and newest.position == position
    assert (weights.stat().st_ino, weights.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_what_a_killed_writer_leaves_is_no_checkpoint(
    checkpoints: CheckpointWriter, run_dir: Path, context: RunContext
) -> None:
    save_step(checkpoints, 1)
    directory = run_dir / "checkpoints"
    shutil.copytree(directory / "step-00000001", directory / "step-00000002.partial")
    newest = find_newest_checkpoint(run_dir)
    assert newest is not None and newest.position.step == 1
    CheckpointWriter(context).close()
    assert steps(run_dir) == [1], "the next run in the directory must remove it"


def test_a_failure_to_write_is_raised(
    checkpoints: CheckpointWriter, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    save_step(checkpoints, 1)
    monkeypatch.setattr("common.run.checkpoint_writer.write_tensors", fail)
    checkpoints.save(make_state(2), Position(2, 2))
    with pytest.raises(UserError, match=r"step-00000002: cannot be written \(No space left on device\); make space"):
        checkpoints.finish()
    monkeypatch.undo()
    newest = find_newest_checkpoint(run_dir)
    assert newest is not None and newest.position.step == 1
    save_step(checkpoints, 2)  # the disk has space again
    newest = find_newest_checkpoint(run_dir)
    assert newest is not None and newest.position.step == 2


def test_it_is_a_model_directory(checkpoints: CheckpointWriter, run_dir: Path, config: Config) -> None:
    save_step(checkpoints, 1)
    checkpoint = find_newest_checkpoint(run_dir)
    assert isinstance(checkpoint, Checkpoint)
    assert json.loads((checkpoint.directory / "config.json").read_text())["model_type"] == "bert"
    assert set(load_file(checkpoint.directory / "model.safetensors")) == {"a.weight"}
