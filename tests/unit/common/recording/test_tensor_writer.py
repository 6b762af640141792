"""Tests of the writer of safetensors files: the library reads what it writes."""

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from common.recording.tensor_file import TensorFile
from common.recording.tensor_writer import TYPES, write_tensors


def test_the_library_reads_the_file(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray] = {f"{name}/\u00e4 b": np.arange(3).astype(name) for name in TYPES}
    arrays |= {"transposed": np.arange(6.0).reshape(2, 3).T, "number": np.array(2.5), "empty": np.zeros((0, 4))}
    arrays["big endian"] = np.arange(3, dtype=">f4")
    write_tensors(tmp_path / "file", arrays)
    stored = load_file(tmp_path / "file")
    assert stored.keys() == arrays.keys()
    for name, array in arrays.items():
        assert stored[name].dtype == array.dtype.newbyteorder("=")
        assert stored[name].shape == array.shape
        np.testing.assert_array_equal(stored[name], array)


def test_the_library_reads_the_metadata(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", {"x": np.zeros(2)}, {"format": "pt"})
    with safe_open(tmp_path / "file", "np") as file:
        assert file.metadata() == {"format": "pt"}
        assert [*file.keys()] == ["x"]


def test_a_file_without_tensors(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", {})
    assert load_file(tmp_path / "file") == {}


def test_another_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="z: safetensors cannot hold the type complex128"):
        write_tensors(tmp_path / "file", {"z": np.zeros(2, complex)})


def test_the_order_of_tensors_of_one_width_is_kept(tmp_path: Path) -> None:
    names = ["target", "source", "length"]
    write_tensors(tmp_path / "file", {"mask": np.ones(2, bool), **{name: np.zeros(2) for name in names}})
    assert TensorFile(tmp_path / "file", {}, {}).names == [*names, "mask"]
