"""Readers of .npy, .npz and .safetensors files.

NumPy maps only .npy files to memory. So the arrays of other files are unpacked to .npy files in the directory
`scratch`.
"""

import shutil
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from common.data.splits.array_column import Column
from common.errors import UserError, describe_error

LoadedArrays = dict[str, np.ndarray | Column]  # by name; only Parquet files have lists, which become a Column
OFFSETS = ".offsets"  # array NAME.offsets: where each example of the ragged array NAME starts, and the last one ends
# Types of safetensors that NumPy supports by itself. TensorFlow adds bfloat16 to NumPy, but only if it is imported.
NUMPY_TYPES = {"BOOL", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "F16", "F32", "F64"}


def read_npy(directory: Path, scratch: Path) -> LoadedArrays:
    """Return the arrays of a directory of .npy files, by the names of the files."""
    return {path.stem: open_npy(path, path) for path in sorted(directory.glob("*.npy"))}


def read_npz(path: Path, scratch: Path) -> LoadedArrays:
    """Return the arrays that `np.savez` has saved. Pickled arrays are refused."""
    arrays: LoadedArrays = {}
    with (
        report_damage(path, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError),
        zipfile.ZipFile(path) as archive,
    ):
        for number, member_name in enumerate(archive.namelist()):
            unpacked = scratch / f"{number}.npy"
            with archive.open(member_name) as member, unpacked.open("wb") as file:
                shutil.copyfileobj(member, file, 1 << 20)
            name = member_name.removesuffix(".npy")
            arrays[name] = open_npy(unpacked, f"{path}: {name}")
    return arrays


def read_safetensors(path: Path, scratch: Path) -> LoadedArrays:
    """Return the tensors of a .safetensors file."""
    from safetensors import SafetensorError, safe_open

    arrays: LoadedArrays = {}
    with report_damage(path, SafetensorError), safe_open(path, "numpy") as file:
        for number, name in enumerate(file.keys()):
            unpacked = scratch / f"{number}.npy"
            dtype = file.get_slice(name).get_dtype()
            if dtype not in NUMPY_TYPES:
                raise UserError(f"{path}: {name} is {dtype}; save it as float32, an integer or bool")
            np.save(unpacked, file.get_tensor(name))
            arrays[name] = open_npy(unpacked, f"{path}: {name}")
    return arrays


def open_npy(file: Path, location: Path | str) -> np.ndarray:
    """Open a .npy file memory-mapped. `location` names the array in errors."""
    try:
        array: np.ndarray = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        is_pickled = "Python objects" in str(error) or "pickled" in str(error)
        reason = "Python objects, which are not unpickled" if is_pickled else f"cannot be read: {describe_error(error)}"
        raise UserError(f"{location}: {reason}; save it as an array of numbers") from None
    return array


@contextmanager
def report_damage(path: Path, *errors: type[Exception]) -> Iterator[None]:
    """Convert a library's errors about a damaged file to UserError. Other errors pass, such as a full disk.

    Args:
        path: File that is read.
        errors: Types of the library's errors. An OSError with an errno is never about a damaged file.
    """
    try:
        yield
    except errors as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(f"{path}: cannot be read: {describe_error(error)}; write it again") from error
