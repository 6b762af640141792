"""Files of named arrays: the paths of both splits, and the arrays in them.

An array is ragged if its examples have different lengths: lists of a Parquet column, or an array NAME whose examples
begin at the indices in the array NAME.offsets.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from common.config.data import ArraysSettings
from common.data.arrays.array_readers import OFFSETS, LoadedArrays, read_npy, read_npz, read_safetensors
from common.data.arrays.parquet_columns import read_parquet
from common.data.identity import Identity, collect_source_keys, identify_file
from common.data.splits.array_column import Column
from common.errors import UserError

log = logging.getLogger("lockstep")

READERS = {".npz": read_npz, ".safetensors": read_safetensors, ".parquet": read_parquet}
SUFFIXES = f"{', '.join(READERS)} or a directory of .npy files"


@dataclass(frozen=True)
class NamedArrays:
    """The arrays of one split by their names."""

    location: str  # file or directory, for errors
    columns: Mapping[str, Column]  # without the arrays of offsets, which belong to the columns


def read(data: ArraysSettings, scratch: Path) -> tuple[NamedArrays, NamedArrays]:
    """Return both splits, memory-mapped.

    Args:
        data: Settings of the arrays.
        scratch: Empty directory for unpacked arrays, which must exist as long as the arrays are used.

    Raises:
        UserError: If a file is missing or wrong.
    """
    splits: list[tuple[str, LoadedArrays]] = []
    paths = find_splits(data)
    warn_of_same_file(paths)
    for key, path in paths.items():
        folder = scratch / key
        folder.mkdir()
        reader = read_npy if path.is_dir() else READERS[path.suffix.lower()]
        splits.append((str(path), reader(path, folder)))
    return to_named_arrays(*splits)


def to_named_arrays(*splits: tuple[str, LoadedArrays]) -> tuple[NamedArrays, NamedArrays]:
    """Return both splits. An array whose lists all have one length, in both splits, becomes rectangular.

    splits: for each split, its location and its arrays.
    """
    (train_path, train), (validation_path, validation) = splits
    rectangular = {name for name in train.keys() & validation.keys() if _have_one_length(train[name], validation[name])}
    return (
        NamedArrays(train_path, _to_columns(train_path, train, rectangular)),
        NamedArrays(validation_path, _to_columns(validation_path, validation, rectangular)),
    )


def identify(data: ArraysSettings) -> Identity:
    """Return the config keys and the identities of the files."""
    files = {
        key: [identify_file(file) for file in (sorted(path.glob("*.npy")) if path.is_dir() else [path])]
        for key, path in find_splits(data).items()
    }
    return {**collect_source_keys(data), **files}


def find_splits(data: ArraysSettings) -> dict[str, Path]:
    """Return the paths of "train" and "validation". Raise UserError if one is missing or of an unknown kind."""
    paths = {key: find_split(f"data.{key}", getattr(data, key)) for key in ("train", "validation")}
    for key, path in paths.items():
        if path.is_dir() and not any(path.glob("*.npy")):
            raise UserError(f"data.{key}: no .npy files in {path}; use {', '.join(READERS)} or add them")
        if path.is_file() and path.suffix.lower() not in READERS:
            raise UserError(f"data.{key}: unknown suffix: {path}; use {SUFFIXES}")
    return paths


def find_split(key: str, name: str) -> Path:
    """Return the path `name`, the value of the config key `key`. Raise UserError if the path does not exist."""
    if not name:
        raise UserError(f"{key}: has no value; set {key}=...")
    path = Path(name).expanduser()
    if not path.exists():
        raise UserError(f"{key}: no such file: {name}")
    return path


def warn_of_same_file(paths: Mapping[str, Path]) -> None:
    """Log a warning if both splits are the same file."""
    if paths["train"].resolve() == paths["validation"].resolve():
        log.warning("data.validation is the same file as data.train: it shows nothing about new examples")


def _have_one_length(*arrays: np.ndarray | Column) -> bool:
    """Check whether all examples of an array have the same length in all splits, so that its lists are not ragged."""
    sizes: set[int] = set()
    for array in arrays:
        if isinstance(array, Column):
            sizes.update(np.unique(array.lengths(np.arange(len(array)))).tolist())
        elif array.ndim > 1:
            sizes.add(array.shape[1])
    return len(sizes) == 1


def _to_columns(location: str, arrays: LoadedArrays, rectangular: set[str]) -> dict[str, Column]:
    """Return the column of each array, together with its offsets.

    Args:
        location: File or directory, for errors.
        arrays: The arrays of one split, and their offsets.
        rectangular: Names of arrays whose lists all have the same length. They become columns that are not ragged.
    """
    columns = {}
    for name, array in arrays.items():
        if name.endswith(OFFSETS):
            if name.removesuffix(OFFSETS) not in arrays:
                raise UserError(
                    f"{location}: {name} has no array {name.removesuffix(OFFSETS)!r} with the values; add it"
                )
        elif isinstance(array, Column):
            columns[name] = _to_rectangle(array) if name in rectangular else array
        else:
            offsets = arrays.get(f"{name}{OFFSETS}")
            size = len(np.atleast_1d(array))
            columns[name] = Column(
                array, None if offsets is None else _check_offsets(f"{location}: {name}{OFFSETS}", offsets, size)
            )
    return columns


def _to_rectangle(column: Column) -> Column:
    return Column(column.values.reshape(len(column), -1, *column.values.shape[1:]))


def _check_offsets(location: str, offsets: np.ndarray | Column, size: int) -> np.ndarray:
    """Return offsets as int64. Offsets must rise from 0 to `size`, the number of values.

    Raises:
        UserError: An offset is wrong. The error begins with `location`, and names the first wrong offset.
    """
    if isinstance(offsets, Column) or offsets.ndim != 1 or offsets.dtype.kind not in "iu" or not len(offsets):
        raise UserError(f"{location} must be integers of one axis, one more than there are examples")
    checked: np.ndarray = offsets.astype(np.int64)
    falls = np.flatnonzero(np.diff(checked) < 0)
    if checked[0] != 0:
        raise UserError(f"{location}[0] is {checked[0]}; it must be 0")
    if len(falls):
        index = falls[0] + 1
        raise UserError(f"{location}[{index}] is {checked[index]}, less than the {checked[index - 1]} before it")
    if checked[-1] != size:
        raise UserError(f"{location} ends with {checked[-1]}, but there are {size} values; make the numbers equal")
    return checked
