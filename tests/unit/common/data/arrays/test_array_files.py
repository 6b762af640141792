"""Files of named arrays: what is wrong with them."""

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.config.schema import Config
from common.data.arrays.array_cache import open_cache
from common.errors import UserError
from tests.unit.common.data.arrays.array_samples import write

GOOD = {"x": np.ones((4, 2)), "labels": np.arange(4)}
Said = Callable[..., str]


@pytest.fixture
def said(arrays_config: Callable[..., Config], tmp_path: Path) -> Said:
    """Return the error of a training file, without the directory."""

    def say(name: str) -> str:
        with pytest.raises(UserError) as raised:
            open_cache(arrays_config(str(tmp_path / name) if name else "", write(tmp_path, "good", ".npz", GOOD)), None)
        assert "\n" not in str(raised.value)
        return str(raised.value).replace(f"{tmp_path}/", "")

    return say


def test_where_the_splits_are(said: Said, tmp_path: Path) -> None:
    assert said("") == "data.train: has no value; set data.train=..."
    assert said("none.npz") == "data.train: no such file: none.npz"
    (tmp_path / "folder").mkdir()
    assert said("folder") == ("data.train: no .npy files in folder; use .npz, .safetensors, .parquet or add them")
    (tmp_path / "x.csv").touch()
    assert said("x.csv") == (
        "data.train: unknown suffix: x.csv; use .npz, .safetensors, .parquet or a directory of .npy files"
    )


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet"])
def test_damaged_files(said: Said, tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"junk{suffix}").write_bytes(b"junk")
    assert said(f"junk{suffix}").startswith(f"junk{suffix}: cannot be read: ")
    path = Path(write(tmp_path, "cut", suffix, GOOD))
    path.write_bytes(path.read_bytes()[:-40])
    message = said(f"cut{suffix}")
    assert message.startswith(f"cut{suffix}: cannot be read: ") and message.endswith("; write it again")


def test_a_file_changed_within(said: Said, tmp_path: Path) -> None:
    path = Path(write(tmp_path, "bad", ".npz", GOOD))
    content = bytearray(path.read_bytes())
    content[150] ^= 1
    path.write_bytes(content)
    assert said("bad.npz").startswith("bad.npz: cannot be read: BadZipFile: Bad CRC-32")


class Planted:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("/tmp/unpickled-by-lockstep"),)


def test_nothing_is_unpickled(said: Said, tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", x=np.array([Planted()], object), labels=np.ones(1))
    objects = "Python objects, which are not unpickled; save it as an array of numbers"
    assert said("bad.npz") == f"bad.npz: x: {objects}"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/x.npy").write_bytes(pickle.dumps(Planted()))
    assert said("folder") == f"folder/x.npy: {objects}"
    assert not Path("/tmp/unpickled-by-lockstep").exists()


def test_a_short_npy(said: Said, tmp_path: Path) -> None:
    write(tmp_path, "folder", "", GOOD)
    path = tmp_path / "folder/x.npy"
    path.write_bytes(path.read_bytes()[:-8])
    message = "folder/x.npy: cannot be read: ValueError: mmap length is greater than file size"
    assert said("folder").startswith(message)


@pytest.mark.parametrize("added", [False, True], ids=["as it is", "that TensorFlow adds"])
def test_a_type_that_numpy_does_not_have(said: Said, tmp_path: Path, added: bool) -> None:
    if added:
        pytest.importorskip("ml_dtypes")
    header = json.dumps({"x": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4)
    assert said("a.safetensors") == "a.safetensors: x is BF16; save it as float32, an integer or bool"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array(["a", "b"]), "x is string; use numbers, bools or lists of them, or leave it out"),
        (pa.array([{"a": 1}] * 2), "x is struct<a: int64>; use numbers, bools or lists of them, or leave it out"),
        (pa.array([["a"], []]), "x is list<element: string>; use numbers, bools or lists of them, or leave it out"),
        (pa.array([1, None]), "x[1] is null; fill it in or remove the example"),
        (pa.array([[1], None]), "x[1] is null; fill it in or remove the example"),
        (pa.array([[1], [None]]), "x has a null within a list; fill it in or remove the example"),
        (pa.array([[[1]], [[1, 2]]]), "x has inner lists of 1 and of 2 values; only the outer may differ"),
        (pa.array([[], []], pa.list_(pa.int8())), "x has no values; fill it in or leave it out"),
    ],
)
def test_columns_of_parquet(said: Said, tmp_path: Path, values: pa.Array, expected: str) -> None:
    pq.write_table(pa.table({"x": values, "labels": [0, 1]}), tmp_path / "a.parquet")
    assert said("a.parquet") == f"a.parquet: {expected}"


def test_a_null_is_found_in_a_later_batch(said: Said, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [*range(9000), None], "labels": [0] * 9001}), tmp_path / "a.parquet")
    assert said("a.parquet") == "a.parquet: x[9000] is null; fill it in or remove the example"


def test_lists_of_one_fixed_size(tmp_path: Path, arrays_config: Callable[..., Config]) -> None:
    at = str(tmp_path / "a.parquet")
    column = pa.array([[[1, 2]] * 3] * 2, pa.list_(pa.list_(pa.int16(), 2), 3))
    pq.write_table(pa.table({"x": column, "labels": [0, 1]}), at)
    assert open_cache(arrays_config(at, at), None).inputs == {"x": ("int32", (3, 2))}


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ([1, 2, 6], "x.offsets[0] is 1; it must be 0"),
        ([0, 4, 3, 6], "x.offsets[2] is 3, less than the 4 before it"),
        ([0, 2, 5], "x.offsets ends with 5, but there are 6 values; make the numbers equal"),
        ([0.0, 6.0], "x.offsets must be integers of one axis, one more than there are examples"),
        ([[0, 6]], "x.offsets must be integers of one axis, one more than there are examples"),
        ([], "x.offsets must be integers of one axis, one more than there are examples"),
        ([0, 6], "x has 1 examples, but labels has 2; make the numbers equal"),
    ],
)
def test_offsets(said: Said, tmp_path: Path, offsets: list, expected: str) -> None:
    np.savez(tmp_path / "a.npz", **{"x": np.ones(6), "x.offsets": np.array(offsets), "labels": np.arange(2)})  # type: ignore[arg-type]
    assert said("a.npz") == f"a.npz: {expected}"


def test_offsets_alone(said: Said, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **{"x.offsets": np.array([0, 1]), "labels": np.arange(1)})  # type: ignore[arg-type]
    assert said("a.npz") == "a.npz: x.offsets has no array 'x' with the values; add it"
