"""Tests of the writer of records: its files, its limit of bytes, and its behaviour on a full disk."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from common.recording.record_format import Environment, StepFacts
from common.recording.record_writer import RecordWriter, draw_sample, list_plain_values

ENVIRONMENT: Environment = {"versions": {"python": "3.11"}, "device": "cpu", "flags": {"threads": 2}}
FACTS: StepFacts = {
    "step": 1,
    "micro_batches": 1,
    "losses": [2.5],
    "rates": [0.1],
    "loss_scale": None,
    "skipped": False,
    "max_norm": None,
}
WEIGHT = np.arange(6.0).reshape(2, 3)


def test_files_of_a_record(tmp_path: Path) -> None:
    writer = RecordWriter(str(tmp_path / "new"), "torch", ENVIRONMENT)
    writer.write_start({"weight/w": WEIGHT})
    writer.write_step(FACTS, {"weight/w": WEIGHT.T})
    facts = json.loads((tmp_path / "new/record.json").read_text())
    assert (facts["steps"], facts["complete"]) == ([FACTS], False)
    assert np.array_equal(load_file(tmp_path / "new/start.safetensors")["weight/w"], WEIGHT)
    assert np.array_equal(load_file(tmp_path / "new/step-00000001.safetensors")["weight/w"], WEIGHT.T)
    writer.close(complete=True)
    assert json.loads((tmp_path / "new/record.json").read_text())["complete"]
    writer.write_step(FACTS, {"weight/w": WEIGHT})  # after the end
    assert np.array_equal(load_file(tmp_path / "new/step-00000001.safetensors")["weight/w"], WEIGHT.T)


def test_ranks_have_directories_and_replace_an_earlier_record(tmp_path: Path) -> None:
    RecordWriter(str(tmp_path), "torch", ENVIRONMENT).write_step(FACTS, {"weight/w": WEIGHT})
    for rank in range(2):
        RecordWriter(str(tmp_path), "torch", ENVIRONMENT, rank, world_size=2).write_step(FACTS, {"weight/w": WEIGHT})
    assert not (tmp_path / "record.json").exists()
    assert [json.loads((tmp_path / f"rank-{rank}/record.json").read_text())["rank"] for rank in range(2)] == [0, 1]
    writer = RecordWriter(str(tmp_path), "torch", ENVIRONMENT)
    assert not (tmp_path / "step-00000001.safetensors").exists()
    writer.write_step(FACTS, {"weight/w": WEIGHT})
    assert (tmp_path / "record.json").exists()


def test_other_files_are_kept(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "record.json").write_text("{}")
    with pytest.raises(ValueError, match=r"notes\.txt: is not a part of a record"):
        RecordWriter(str(tmp_path), "torch", ENVIRONMENT)
    assert (tmp_path / "record.json").exists()


def test_a_tensor_beyond_the_limit_becomes_a_sample(tmp_path: Path) -> None:
    large = np.arange(10_000, dtype=np.float32).reshape(100, 100)
    writer = RecordWriter(str(tmp_path), "torch", ENVIRONMENT, max_bytes=1000)
    writer.write_step(FACTS, {"weight/small": WEIGHT, "weight/large": large})
    stored = load_file(tmp_path / "step-00000001.safetensors")
    assert np.array_equal(stored["weight/small"], WEIGHT)
    assert np.array_equal(stored["weight/large"], large.reshape(-1)[stored["sample/weight/large"]])
    abridged = json.loads((tmp_path / "record.json").read_text())["abridged"]["step-00000001.safetensors"]
    assert abridged["weight/large"]["shape"] == [100, 100]
    assert abridged["weight/large"]["norm"] == pytest.approx(np.linalg.norm(large))


def test_an_error_of_the_disk_ends_the_record_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RecordWriter(str(tmp_path), "torch", ENVIRONMENT)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("common.recording.record_writer.write_tensors", fail)
    with pytest.warns(RuntimeWarning, match="the record ends here, and the training goes on: .*No space left"):
        writer.write_step(FACTS, {"weight/w": WEIGHT})
    assert not writer.is_open
    assert list(tmp_path.iterdir()) == []
    writer.write_step(FACTS, {"weight/w": WEIGHT})  # nothing, and no second warning


def test_plain_values() -> None:
    values = {"lr": 0.1, "betas": (0.9, 0.99), "foreach": None, "params": [object()], "callback": print}
    assert list_plain_values(values) == {"lr": 0.1, "betas": [0.9, 0.99], "foreach": None}


def test_the_same_tensor_is_stored_once(tmp_path: Path) -> None:
    writer = RecordWriter(str(tmp_path), "torch", ENVIRONMENT)
    writer.write_step(FACTS, {"layer/a/output": WEIGHT, "layer/b/input": WEIGHT, "weight/w": WEIGHT.copy()})
    assert sorted(load_file(tmp_path / "step-00000001.safetensors")) == ["layer/a/output", "weight/w"]
    aliases = json.loads((tmp_path / "record.json").read_text())["aliases"]
    assert aliases == {"step-00000001.safetensors": {"layer/b/input": "layer/a/output"}}


def test_a_sample_that_the_recorder_drew_is_stored(tmp_path: Path) -> None:
    large = np.arange(10_000, dtype=np.float32)
    writer = RecordWriter(str(tmp_path), "torch", ENVIRONMENT)
    writer.write_step(FACTS, {"layer/a/output": draw_sample(large)})
    stored = load_file(tmp_path / "step-00000001.safetensors")
    assert np.array_equal(stored["layer/a/output"], large[stored["sample/layer/a/output"]])
    abridged = json.loads((tmp_path / "record.json").read_text())["abridged"]["step-00000001.safetensors"]
    assert abridged["layer/a/output"]["shape"] == [10_000]
