"""Tests of the reader of records: what it reads, and the line with which it refuses each damaged record."""

import copy
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.errors import UserError
from common.recording.record_reader import is_record, open_record
from tests.unit.common.recording.numpy_script import NumpyScript, draw_weights


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return NumpyScript().write(tmp_path_factory.mktemp("records") / "old")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return NumpyScript(ranks=2).write(tmp_path_factory.mktemp("records") / "ranks")


def test_a_record_is_read(record: Path, ranks: Path) -> None:
    opened, of_ranks = open_record(record), open_record(ranks)
    assert (opened.steps, opened.framework, opened.notes) == ([1, 2, 3], "torch", [])
    assert np.array_equal(opened.ranks[0].start.select("weight")["fc1.weight"], draw_weights()["fc1.weight"])
    assert opened.ranks[0].open_step(2).select("batch/0/input")["0"].shape == (12, 5)
    assert [rank.open_step(1).read("batch/0/input/0").shape for rank in of_ranks.ranks] == [(6, 5), (6, 5)]
    assert of_ranks.get_loss(1) == pytest.approx(opened.get_loss(1), rel=1e-6)
    assert is_record(record)
    assert is_record(ranks)
    assert not is_record(record.parent)


def edit(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        content = json.loads((directory / "record.json").read_text())
        change(content)
        (directory / "record.json").write_text(json.dumps(content))

    return damage


def link(path: Path) -> None:
    path.rename(path.with_name("target"))
    path.symlink_to(path.with_name("target"))


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def empty(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no record": (empty, "not a record"),
    "missing": (lambda path: shutil.rmtree(path), "no such directory"),
    "newer": (
        edit(lambda facts: facts.update(format=3)),
        "has format 3, and .* formats 1 and 2; update Lockstep",
    ),
    "half written": (lambda path: (path / "record.json").unlink(), "half written: no step is finished"),
    "no steps": (edit(lambda facts: facts.update(steps=[])), "has no finished step"),
    "refused": (
        edit(
            lambda facts: facts.update(steps=[], not_recorded=["other", "batches: following ended with an error: x\ny"])
        ),
        "has no finished step, because following ended: x",
    ),
    "no json": (lambda path: (path / "record.json").write_text("{"), "not valid JSON"),
    "type": (edit(lambda facts: facts.update(rank="0")), "rank must be a whole number from 0 on, is '0'"),
    "nested type": (
        edit(lambda facts: facts["steps"][1].update(losses=["2"])),  # type: ignore[index]
        r"steps\.1\.losses\.0 must be a number, is '2'",
    ),
    "factor": (
        edit(lambda facts: facts["steps"][1].update(clip_factors={"fc1.weight": 0})),  # type: ignore[index]
        "clip_factors must be numbers above 0",
    ),
    "missing key": (edit(lambda facts: facts["model"].pop("layers")), r"model\.layers is missing"),  # type: ignore[attr-defined]
    "order of steps": (edit(lambda facts: facts["steps"].reverse()), "steps are not in order"),  # type: ignore[attr-defined]
    "framework": (edit(lambda facts: facts.update(framework="jax")), "framework must be one of torch, tensorflow"),
    "rank": (edit(lambda facts: facts.update(world_size=2)), "record of one of several processes"),
    "missing step": (lambda path: (path / "step-00000002.safetensors").unlink(), "cannot be read: No such file"),
    "truncated": (lambda path: os.truncate(path / "step-00000002.safetensors", 500), "damaged: "),
    "linked json": (lambda path: link(path / "record.json"), "not a regular file; links are not followed"),
    "linked tensors": (lambda path: link(path / "step-00000002.safetensors"), "not a regular file"),
    "pipe": (lambda path: make_pipe(path / "step-00000002.safetensors"), "not a regular file"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_record_is_refused_in_one_line(name: str, record: Path, tmp_path: Path) -> None:
    damage, expected = DAMAGES[name]
    damage(Path(shutil.copytree(record, tmp_path / "old")))
    with pytest.raises(UserError, match=expected) as caught:
        open_record(tmp_path / "old").ranks[0].open_step(2)
    assert "\n" not in str(caught.value)


OPERATIONS = {
    "tensors": [{"shape": [2], "dtype": "float32", "sum": 3.0, "norm": 2.5, "minimum": 1.0, "maximum": None}],
    "operations": [
        {"name": "relu", "arguments": {}, "inputs": [0], "outputs": [0], "layer": "", "file": "", "line": 0, "code": ""}
    ],
    "names": {"batch/0/input/0": 0},
    "loss": 0,
    "complete": True,
}
OPERATION_DAMAGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "missing key": (lambda trace: trace.pop("loss"), r"operations\.json: loss is missing"),
    "type": (lambda trace: trace["operations"][0].update(line="3"), r"operations\.0\.line must be a whole number"),
    "shape": (lambda trace: trace["tensors"][0].update(shape=[-1]), r"tensors\.0\.shape\.0 must be a whole number"),
    "axes": (lambda trace: trace["tensors"][0].update(shape=[1] * 300), "a tensor has too many axes or elements"),
    "elements": (
        lambda trace: trace["tensors"][0].update(shape=[2**52] * 40),
        "a tensor has too many axes or elements",
    ),
    "infinity": (lambda trace: trace["tensors"][0].update(norm=float("inf")), "must be finite numbers or null"),
    "infinite center": (lambda trace: trace["tensors"][0].update(centers=[float("nan")]), "centers .* must be finite"),
    "missing center": (lambda trace: trace["tensors"][0].update(centers=[]), "needs a center for each axis"),
    "type of a center": (lambda trace: trace["tensors"][0].update(centers=["1"]), r"0\.centers\.0 must be a number"),
    "input": (lambda trace: trace["operations"][0].update(inputs=[1]), "names tensor 1, and has 1 tensors"),
    "name": (lambda trace: trace["names"].update(x=1), "names tensor 1, and has 1 tensors"),
    "loss": (lambda trace: trace.update(loss=7), "names tensor 7, and has 1 tensors"),
    "length": (lambda trace: trace["operations"].extend(20_000 * trace["operations"]), "more than 20000 operations"),
}


def test_operations_are_read(record: Path, tmp_path: Path) -> None:
    shutil.copytree(record, tmp_path / "old")
    assert open_record(tmp_path / "old").ranks[0].operations is None
    (tmp_path / "old" / "operations.json").write_text(json.dumps(OPERATIONS))
    assert open_record(tmp_path / "old").ranks[0].operations == OPERATIONS


@pytest.mark.parametrize("name", OPERATION_DAMAGES)
def test_damaged_operations_are_refused_in_one_line(name: str, record: Path, tmp_path: Path) -> None:
    damage, expected = OPERATION_DAMAGES[name]
    trace = copy.deepcopy(OPERATIONS)
    damage(trace)
    shutil.copytree(record, tmp_path / "old")
    (tmp_path / "old" / "operations.json").write_text(json.dumps(trace))
    with pytest.raises(UserError, match=expected) as caught:
        _ = open_record(tmp_path / "old").ranks[0].operations
    assert "\n" not in str(caught.value)


RANK_DAMAGES: dict[str, tuple[Callable[[Path], object], str | None]] = {
    "missing rank": (lambda path: shutil.rmtree(path / "rank-1"), "has no rank-1, and the script had 2 processes"),
    "missing first rank": (lambda path: shutil.rmtree(path / "rank-0"), "has no rank-0"),
    "linked rank": (lambda path: link(path / "rank-1"), "rank-1: a symbolic link"),
    "linked first rank": (lambda path: link(path / "rank-0"), "rank-0: a symbolic link"),
    "other run": (lambda path: edit(lambda facts: facts.update(rank=0))(path / "rank-1"), "comes from another run"),
    "no common step": (
        lambda path: edit(lambda facts: facts.update(steps=facts["steps"][1:]))(path / "rank-1"),  # type: ignore[index]
        None,
    ),
}


@pytest.mark.parametrize("name", RANK_DAMAGES)
def test_incomplete_ranks(name: str, ranks: Path, tmp_path: Path) -> None:
    damage, expected = RANK_DAMAGES[name]
    damage(Path(shutil.copytree(ranks, tmp_path / "old")))
    if expected is None:
        opened = open_record(tmp_path / "old")
        assert opened.steps == [2, 3]
        assert opened.notes == ["the processes recorded 2 to 3 steps; the common ones are compared"]
        return
    with pytest.raises(UserError, match=expected):
        open_record(tmp_path / "old")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["record.json", "start.safetensors", "step-00000001.safetensors"]),
    position=st.floats(0, 1),
    replacement=st.binary(max_size=12),
)
def test_bytes_of_any_kind_are_read_or_refused(
    name: str, position: float, replacement: bytes, record: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "old"
    shutil.copytree(record, directory, dirs_exist_ok=True)
    content = bytearray((directory / name).read_bytes())
    start = int(position * len(content))
    content[start : start + len(replacement)] = replacement
    (directory / name).write_bytes(content)
    try:
        opened = open_record(directory)
        for file in (opened.ranks[0].start, *(opened.ranks[0].open_step(step) for step in opened.steps)):
            for tensor in file.names:
                file.read(tensor)
    except UserError as error:
        assert "\n" not in str(error)
