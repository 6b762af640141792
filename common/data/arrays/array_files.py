"""Files of named arrays as a source: where the splits are, and what they hold."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.config.data import ArraysSettings
from common.data.arrays.array_readers import OFFSETS, LoadedArrays, read_npy, read_npz, read_parquet, read_safetensors
from common.data.arrays.column import Column
from common.data.identity import collect_source_keys, identify_file
from common.errors import UserError

log = logging.getLogger("lockstep")

READERS = {".npz": read_npz, ".safetensors": read_safetensors, ".parquet": read_parquet}
SUFFIXES = f"{', '.join(READERS)} or a directory of .npy files"


@dataclass(frozen=True)
class NamedArrays:
    """The arrays of one split by their names. at: the file, for errors."""

    at: str
    columns: Mapping[str, Column]


def read(data: ArraysSettings, scratch: Path) -> tuple[NamedArrays, NamedArrays]:
    """Both splits, memory-mapped. scratch: an empty directory that outlives them. Raises UserError."""
    splits: list[tuple[str, LoadedArrays]] = []
    paths = find_splits(data)
    warn_of_one_file(paths)
    for key, path in paths.items():
        folder = scratch / key
        folder.mkdir()
        reader = read_npy if path.is_dir() else READERS[path.suffix.lower()]
        splits.append((str(path), reader(path, folder)))
    (train_at, train), (validation_at, validation) = splits
    fixed = {name for name in train.keys() & validation.keys() if _same_length(train[name], validation[name])}
    return NamedArrays(train_at, _paired(train_at, train, fixed)), NamedArrays(
        validation_at, _paired(validation_at, validation, fixed)
    )


def identify(data: ArraysSettings) -> dict[str, Any]:
    """What names the corpus: the keys, and the files' paths, sizes and times of change."""
    found = {
        key: [identify_file(file) for file in (sorted(path.glob("*.npy")) if path.is_dir() else [path])]
        for key, path in find_splits(data).items()
    }
    return {**collect_source_keys(data), **found}


def find_splits(data: ArraysSettings) -> dict[str, Path]:
    """The files or directories of the splits by their keys. Raises UserError."""
    paths = {key: find_split(f"data.{key}", getattr(data, key)) for key in ("train", "validation")}
    for key, path in paths.items():
        if path.is_dir() and not any(path.glob("*.npy")):
            raise UserError(f"data.{key}: no .npy files in {path}; use {', '.join(READERS)} or add them")
        if path.is_file() and path.suffix.lower() not in READERS:
            raise UserError(f"data.{key}: unknown suffix: {path}; use {SUFFIXES}")
    return paths


def find_split(key: str, name: str) -> Path:
    """The path that a key names. Raises UserError where it names none, or nothing that is there."""
    if not name:
        raise UserError(f"{key}: has no value; give {key}=...")
    path = Path(name).expanduser()
    if not path.exists():
        raise UserError(f"{key}: no such file: {name}")
    return path


def warn_of_one_file(paths: Mapping[str, Path]) -> None:
    """Log a line where both splits are the same."""
    if paths["train"].resolve() == paths["validation"].resolve():
        log.warning("data.validation is the same file as data.train: it shows nothing about new examples")


def _same_length(*arrays: np.ndarray | Column) -> bool:
    """Whether an array that is of lists in a file is of one length in all of them, and so is not ragged."""
    sizes: set[int] = set()
    for array in arrays:
        if isinstance(array, Column):
            sizes.update(np.unique(array.lengths(np.arange(len(array)))).tolist())
        elif array.ndim > 1:
            sizes.add(array.shape[1])
    return len(sizes) == 1


def _paired(at: str, arrays: LoadedArrays, fixed: set[str]) -> dict[str, Column]:
    """The values of each array together with their offsets."""
    columns = {}
    for name, array in arrays.items():
        if name.endswith(OFFSETS):
            if name.removesuffix(OFFSETS) not in arrays:
                raise UserError(f"{at}: {name} has no array {name.removesuffix(OFFSETS)!r} with the values; add it")
        elif isinstance(array, Column):
            columns[name] = _rectangular(array) if name in fixed else array
        else:
            offsets = arrays.get(f"{name}{OFFSETS}")
            columns[name] = Column(
                array, None if offsets is None else _checked(at, name, offsets, len(np.atleast_1d(array)))
            )
    return columns


def _rectangular(column: Column) -> Column:
    return Column(column.values.reshape(len(column), -1, *column.values.shape[1:]))


def _checked(at: str, name: str, offsets: np.ndarray | Column, size: int) -> np.ndarray:
    """Offsets int64 that rise from 0 to the number of values. Raises UserError, which names the first that is wrong."""
    name += OFFSETS
    if isinstance(offsets, Column) or offsets.ndim != 1 or offsets.dtype.kind not in "iu" or not len(offsets):
        raise UserError(f"{at}: {name} must be integers of one axis, one more than there are examples")
    checked: np.ndarray = offsets.astype(np.int64)
    falls = np.flatnonzero(np.diff(checked) < 0)
    if checked[0] != 0:
        raise UserError(f"{at}: {name}[0] is {checked[0]}; it must be 0")
    if len(falls):
        index = falls[0] + 1
        raise UserError(f"{at}: {name}[{index}] is {checked[index]}, less than the {checked[index - 1]} before it")
    if checked[-1] != size:
        raise UserError(f"{at}: {name} ends with {checked[-1]}, but there are {size} values; they must be as many")
    return checked
