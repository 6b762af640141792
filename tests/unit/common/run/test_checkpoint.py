import json
import logging
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.data.atomic_directory import SEAL, compute_checksum, read_manifest, write_manifest
from common.errors import UserError
from common.run.checkpoint import (
    find_newest_checkpoint,
    open_checkpoint,
    open_unverified_checkpoint,
    select_best,
)
from common.run.checkpoint_writer import CheckpointWriter
from common.run.curve_settings import collect_curve_settings
from tests.conftest import MakeConfig
from tests.unit.common.run.conftest import make_state, save_step

FILES = {"model.safetensors", "optimizer.safetensors", "state.json", "config.json"}
FILES |= {"tokenizer.json", "tokenizer_config.json", "vocab.txt"}


def test_what_was_saved_is_loaded(checkpoints: CheckpointWriter, run_dir: Path) -> None:
    position = save_step(checkpoints, 7, 0.25)
    checkpoint = open_checkpoint(run_dir / "checkpoints" / "step-00000007")
    assert checkpoint.position == position
    loaded = checkpoint.load()
    assert np.array_equal(loaded.weights["a.weight"], make_state(7).weights["a.weight"])
    assert loaded.slots["exp_avg.a.weight"].dtype == np.float64, "the data type must not change"
    assert {path.name for path in checkpoint.directory.iterdir()} == FILES
    assert find_newest_checkpoint(run_dir) == checkpoint


def test_by_step_and_not_by_time(checkpoints: CheckpointWriter, run_dir: Path) -> None:
    """The newest checkpoint is the same if the clock jumps back."""
    for step in (1, 2):
        save_step(checkpoints, step)
    os.utime(run_dir / "checkpoints" / "step-00000002", (0, 0))
    os.utime(run_dir / "checkpoints" / "step-00000002" / "state.json", (0, 0))
    newest = find_newest_checkpoint(run_dir)
    assert newest is not None and newest.position.step == 2


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
    return "state.json: not valid JSON"


def link_a_file(directory: Path) -> str:
    path = directory / "model.safetensors"
    path.symlink_to(path.rename(directory.parent / "moved"))
    return "model.safetensors is a symbolic link"


def list_a_file_outside(directory: Path) -> str:
    (directory.parent / "outside").write_text("secret")
    state: dict[str, Any] = json.loads((directory / "state.json").read_text())
    del state[SEAL]
    state["checksums"]["../outside"] = compute_checksum(directory.parent / "outside")
    write_manifest(directory, state, "state.json")
    return "../outside is outside of the directory"


def put_a_pipe(directory: Path) -> str:
    (directory / "model.safetensors").unlink()
    os.mkfifo(directory / "model.safetensors")
    return "model.safetensors is not a regular file"


def nest_deeply(directory: Path) -> str:
    (directory / "state.json").write_text("[" * 100_000)
    return "state.json: not valid JSON"


DAMAGES = [truncate, flip_a_byte, mix_steps, change_the_step, remove_a_file, empty_state]
DAMAGES += [link_a_file, list_a_file_outside, put_a_pipe, nest_deeply]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__)
def test_a_damaged_one_is_refused_and_the_one_before_it_taken(
    checkpoints: CheckpointWriter, run_dir: Path, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (1, 2):
        save_step(checkpoints, step)
    directory = run_dir / "checkpoints" / "step-00000002"
    problem = damage(directory)
    with pytest.raises(UserError) as raised:
        open_checkpoint(directory)
    assert str(raised.value).startswith(f"{directory}: {problem}")
    with caplog.at_level(logging.WARNING, "lockstep"):
        newest = find_newest_checkpoint(run_dir)
    assert newest is not None and newest.position.step == 1
    assert problem in caplog.text
    save_step(checkpoints, 2)  # the run trains step 2 again
    newest = find_newest_checkpoint(run_dir)
    assert newest is not None and newest.position.step == 2


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"step": -5}, "'position.step' in state.json must be a whole number, found -5"),
        ({"step": 13}, "state.json is of step 13"),
        ({"step": "2"}, "'position.step' in state.json must"),
        ({"step": True}, "'position.step' in state.json must"),
        ({"plan_position": None}, "'position.plan_position' in state.json must"),
        ({"examples": 10**30}, "'position.examples' in state.json must"),
        ({"seconds": math.nan}, "'position.seconds' in state.json must"),
        ({"validation": {"accuracy": 1}}, "'position.validation' in state.json must"),
        ({"best": "x"}, "'position.best' in state.json must"),
        (
            {"plateau": {"factor": 0.5}},
            "'position.plateau' in state.json must be null or the progress of schedule=plat",
        ),
        ({"other": 1}, "'position' in state.json has the unknown field 'other'"),
    ],
)
def test_a_sealed_position_with_wrong_values_is_refused(
    checkpoints: CheckpointWriter, run_dir: Path, change: dict[str, object], problem: str
) -> None:
    save_step(checkpoints, 2)
    directory = run_dir / "checkpoints" / "step-00000002"
    state = read_manifest(directory, "state.json")
    write_manifest(directory, {**state, "position": {**state["position"], **change}}, "state.json")
    for open_any in (open_checkpoint, open_unverified_checkpoint):
        with pytest.raises(UserError) as raised:
            open_any(directory)
        assert str(raised.value).startswith(f"{directory}: {problem}")
    assert find_newest_checkpoint(run_dir) is None and select_best([directory]) is None


@pytest.mark.parametrize(
    "change",
    [
        {"format": None},
        {"format": "2"},
        {"format": True},
        {"position": None},
        {"position": []},
        {"settings": []},
        {"environments": [{}]},
        {"stream_blocks": {"1": 2}},
        {"checksums": {}},
        {"checksums": []},
        {"checksums": {"a\0b": ""}},
    ],
    ids=str,
)
def test_a_sealed_state_with_wrong_fields_is_refused(
    checkpoints: CheckpointWriter, run_dir: Path, change: dict[str, object]
) -> None:
    save_step(checkpoints, 2)
    directory = run_dir / "checkpoints" / "step-00000002"
    write_manifest(directory, {**read_manifest(directory, "state.json"), **change}, "state.json")
    with pytest.raises(UserError, match="; choose another checkpoint"):
        open_checkpoint(directory)


def test_of_another_format(checkpoints: CheckpointWriter, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.run.checkpoint_writer.FORMAT", 3)
    save_step(checkpoints, 1)
    with pytest.raises(UserError, match="has format 3, and this version of Lockstep reads 1 to 2; "):
        open_checkpoint(run_dir / "checkpoints" / "step-00000001")


@pytest.mark.slow
def test_settings_are_what_decides_the_curve(small_config: MakeConfig) -> None:
    before = collect_curve_settings(small_config(), "data")
    for same in ("strategy=ddp", "train.steps=7", "run_dir=x", "train.log_every=1", "cluster.timeout=3"):
        assert collect_curve_settings(small_config(same), "data") == before, same
    for other in ("optimizer.beta1=0.8", "train.seed=1", "schedule=cosine", "train.global_batch_size=8"):
        assert collect_curve_settings(small_config(other), "data") != before, other
    assert collect_curve_settings(small_config(), "other data") != before


def test_reopened_without_reading_its_arrays(
    checkpoints: CheckpointWriter, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_step(checkpoints, 1)
    checkpoint = open_checkpoint(run_dir / "checkpoints" / "step-00000001")

    def fail(path: Path) -> str:
        raise AssertionError(f"{path} is read again")

    monkeypatch.setattr("common.data.atomic_directory.compute_checksum", fail)
    assert open_unverified_checkpoint(checkpoint.directory) == checkpoint
