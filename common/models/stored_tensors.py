"""Tensors that stay in a safetensors file until they are used, so that a process holds only what it takes from them.

The library's own functions return all tensors at once, or map the file into memory, which keeps all that was read.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from safetensors import safe_open
from typing_extensions import override

from common.recording.tensor_writer import TYPES

NUMPY_TYPES = {stored: np.dtype(name).newbyteorder("<") for name, stored in TYPES.items()}


class StoredTensors(Mapping[str, np.ndarray]):
    """The tensors of a safetensors file by name. Every access reads a tensor from the file again."""

    def __init__(self, path: Path) -> None:
        """Read the header of a file. The file must exist as long as tensors are read.

        Raises:
            OSError: The file cannot be read.
            SafetensorError: The file is damaged.
        """
        with safe_open(path, "numpy"):  # checks the header
            pass
        with path.open("rb") as file:
            header_size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(header_size))
        self._path, self._data_start = path, 8 + header_size
        self._entries = {name: entry for name, entry in header.items() if name != "__metadata__"}

    @override
    def __getitem__(self, name: str) -> np.ndarray:
        shape = self._entries[name]["shape"]
        return self._read(name, 0, int(np.prod(shape))).reshape(shape)

    @override
    def __contains__(self, name: object) -> bool:
        return name in self._entries  # Mapping would read the tensor

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    @override
    def __len__(self) -> int:
        return len(self._entries)

    def read_part(self, name: str, index: int, count: int) -> np.ndarray:
        """Return the rows of a part of a tensor; see `read_part`."""
        length, *row_shape = self._entries[name]["shape"]
        start, stop, _ = _find_rows(length, index, count).indices(length)
        row_size, rows = int(np.prod(row_shape)), max(stop - start, 0)
        return self._read(name, start * row_size, rows * row_size).reshape(rows, *row_shape)

    def _read(self, name: str, start: int, size: int) -> np.ndarray:
        """Return `size` elements of a tensor, flat, from the element `start`. Raise OSError if the file was cut."""
        dtype, begin = NUMPY_TYPES[self._entries[name]["dtype"]], self._entries[name]["data_offsets"][0]
        array = np.fromfile(self._path, dtype, size, offset=self._data_start + begin + start * dtype.itemsize)
        if array.size < size:
            raise OSError(f"{self._path}: the file ends within {name}; it became shorter while it was read")
        return array


def read_part(arrays: Mapping[str, np.ndarray], name: str, index: int, count: int) -> np.ndarray:
    """Return the rows of one of `count` parts of an array, as torch.chunk divides it. The last parts may have no rows.

    Args:
        arrays: Arrays by name. Of StoredTensors, only the rows are read.
        name: The name of the array.
        index: The number of the part, from 0.
        count: The number of parts.
    """
    if isinstance(arrays, StoredTensors):
        return arrays.read_part(name, index, count)
    return arrays[name][_find_rows(len(arrays[name]), index, count)].copy()  # a view would keep the whole array


def _find_rows(length: int, index: int, count: int) -> slice:
    rows = -(-length // count)
    return slice(index * rows, (index + 1) * rows)
