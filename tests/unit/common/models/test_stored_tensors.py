"""Tests of tensors that stay in their file: they equal those of the library, and only what is used is read."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from common.models.stored_tensors import StoredTensors, read_part

ARRAYS = {
    "matrix": np.arange(35.0).reshape(7, 5),
    "vector": np.arange(4, dtype=np.float32),
    "half": np.arange(6, dtype=np.float16).reshape(2, 1, 3),
    "scalar": np.array(3, np.int64),
    "flags": np.array([True, False]),
    "empty": np.zeros((0, 3), np.float32),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_file(ARRAYS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path / "model.safetensors"


def test_tensors_equal_those_of_the_library(path: Path) -> None:
    stored, expected = StoredTensors(path), load_file(path)
    assert stored.keys() == expected.keys() and len(stored) == len(ARRAYS)
    for name, array in expected.items():
        assert stored[name].dtype == array.dtype and stored[name].shape == array.shape
        assert np.array_equal(stored[name], array)
        assert stored[name].flags.writeable, "torch.from_numpy warns about arrays that are not"


@pytest.mark.parametrize("name", ["matrix", "vector", "half", "empty"])
@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_parts_are_those_of_torch_chunk(path: Path, name: str, count: int) -> None:
    chunks = [chunk.numpy() for chunk in torch.from_numpy(ARRAYS[name]).chunk(count)]
    parts = [read_part(StoredTensors(path), name, index, count) for index in range(count)]
    for index, part in enumerate(parts):
        expected = chunks[index] if index < len(chunks) else ARRAYS[name][:0]
        assert part.shape == expected.shape and part.dtype == expected.dtype and np.array_equal(part, expected)
        assert np.array_equal(part, read_part(ARRAYS, name, index, count))


def test_a_part_takes_the_memory_of_its_rows(tmp_path: Path) -> None:
    save_file({"a": np.ones((1000, 100)), "b": np.ones((1000, 1000))}, tmp_path / "file")
    tracemalloc.start()
    part = read_part(StoredTensors(tmp_path / "file"), "b", 3, 100)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert part.nbytes == 80_000 and peak < 2 * part.nbytes


def test_a_part_of_an_array_in_memory_does_not_keep_the_whole_array() -> None:
    rows = read_part({"a": np.arange(7)}, "a", 1, 3)
    assert rows.tolist() == [3, 4, 5] and rows.base is None


def test_a_file_that_becomes_shorter_is_named(path: Path) -> None:
    stored = StoredTensors(path)
    path.write_bytes(path.read_bytes()[:-1])
    last = max(stored, key=lambda name: stored._entries[name]["data_offsets"])
    with pytest.raises(OSError, match=f"{path}: the file ends within {last}"):
        stored[last]


def test_a_damaged_file_is_refused(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SafetensorError):
        StoredTensors(path)
