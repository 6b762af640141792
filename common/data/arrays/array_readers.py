"""Files of named arrays. Each is laid out as .npy files, which are opened memory-mapped whatever they came from."""

import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from common.data.array_writer import ArrayWriter
from common.data.arrays.column import Column
from common.errors import UserError, describe_error

LoadedArrays = dict[str, np.ndarray | Column]
OFFSETS = ".offsets"  # NAME.offsets says where the examples of a ragged array NAME begin
BATCH = 4096  # rows of Parquet that are read at once
# Types of safetensors that NumPy has by itself. TensorFlow adds bfloat16 to it, where it is imported.
OF_NUMPY = {"BOOL", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "F16", "F32", "F64"}


def read_npy(directory: Path, scratch: Path) -> LoadedArrays:
    """The arrays of a directory of .npy files, by the names of the files."""
    return {path.stem: _open(path, path) for path in sorted(directory.glob("*.npy"))}


def read_npz(path: Path, scratch: Path) -> LoadedArrays:
    """The arrays that np.savez has saved. What was pickled is not read."""
    arrays: LoadedArrays = {}
    with _readable(path, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError), zipfile.ZipFile(path) as archive:
        for number, name in enumerate(archive.namelist()):
            unpacked = scratch / f"{number}.npy"
            with archive.open(name) as member, unpacked.open("wb") as file:
                shutil.copyfileobj(member, file, 1 << 20)
            name = name.removesuffix(".npy")
            arrays[name] = _open(unpacked, f"{path}: {name}")
    return arrays


def read_safetensors(path: Path, scratch: Path) -> LoadedArrays:
    """The tensors of a .safetensors file."""
    from safetensors import SafetensorError, safe_open

    arrays: LoadedArrays = {}
    with _readable(path, SafetensorError), safe_open(path, "numpy") as file:
        for number, name in enumerate(file.keys()):
            unpacked = scratch / f"{number}.npy"
            dtype = file.get_slice(name).get_dtype()
            if dtype not in OF_NUMPY:
                raise UserError(f"{path}: {name} is {dtype}; save it as float32, an integer or bool")
            np.save(unpacked, file.get_tensor(name))
            arrays[name] = _open(unpacked, f"{path}: {name}")
    return arrays


def read_parquet(path: Path, scratch: Path) -> LoadedArrays:
    """The columns of a Parquet file. One of lists is a ragged `Column` until it is known whether all are as long."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _readable(path, pa.ArrowException, OSError), pq.ParquetFile(path) as file:
        fields = enumerate(file.schema_arrow)
        return {field.name: _column(file, number, field, path, scratch) for number, field in fields}


def _column(file: Any, number: int, field: Any, path: Path, scratch: Path) -> np.ndarray | Column:
    """One column, read a batch at a time. Lists within the outermost ones must all be equally long."""
    kind, depth = field.type, 0
    while hasattr(kind, "value_field"):
        kind, depth = kind.value_type, depth + 1
    try:
        dtype = np.dtype(kind.to_pandas_dtype())
    except (NotImplementedError, TypeError):
        dtype = np.dtype(object)
    if dtype.kind not in "biuf":
        raise UserError(f"{path}: {field.name} is {field.type}; use numbers, bools or lists of them, or leave it out")
    values_at, lengths_at = scratch / f"{number}.npy", scratch / f"{number}.lengths.npy"
    inner: list[set[int]] = [set() for _ in range(1, depth)]
    with ArrayWriter(values_at, dtype) as values, ArrayWriter(lengths_at, np.int64) as lengths:
        start = 0
        for batch in file.iter_batches(BATCH, columns=[field.name]):
            array = batch.column(0)
            for level in range(depth):
                _check_nulls(array, f"{path}: {field.name}", start if level == 0 else None)
                found = _lengths(array)
                lengths.append(found) if level == 0 else inner[level - 1].update(found.tolist())
                array = array.flatten()
            _check_nulls(array, f"{path}: {field.name}", None if depth else start)
            values.append(array.to_numpy(zero_copy_only=False))
            start += len(batch)
    if not values.length:
        raise UserError(f"{path}: {field.name} has no values; fill it in or leave it out")
    if uneven := [sizes for sizes in inner if len(sizes) > 1]:
        few, many = min(uneven[0]), max(uneven[0])
        raise UserError(
            f"{path}: {field.name} has inner lists of {few} and of {many} values; only the outer may differ"
        )
    flat = _open(values_at, path).reshape(-1, *(size for sizes in inner for size in sizes))
    if not depth:
        return flat
    return Column(flat, np.concatenate(([0], np.cumsum(np.load(lengths_at)))))


def _lengths(array: Any) -> np.ndarray:
    import pyarrow.compute as pc

    found: np.ndarray = pc.list_value_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _check_nulls(array: Any, at: str, start: int | None) -> None:
    """start: the index of the first example, where each value is one's."""
    if array.null_count:
        index = array.is_null().to_numpy(zero_copy_only=False).argmax()
        where = f"[{start + index}] is null" if start is not None else " has a null within a list"
        raise UserError(f"{at}{where}; fill it in or remove the example")


def _open(file: Path, at: Path | str) -> np.ndarray:
    try:
        array: np.ndarray = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        pickled = "Python objects" in str(error) or "pickled" in str(error)
        reason = "Python objects, which are not unpickled" if pickled else f"cannot be read: {describe_error(error)}"
        raise UserError(f"{at}: {reason}; save it as an array of numbers") from None
    return array


@contextmanager
def _readable(path: Path, *errors: type[Exception]) -> Iterator[None]:
    """Errors of a library that say that a file is damaged; those of the disk that is written to pass."""
    try:
        yield
    except errors as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(f"{path}: cannot be read: {describe_error(error)}; write it again") from error
