"""Arrays that are written piece by piece, so that they never have to be in memory."""

from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.lib import format as npy
from numpy.typing import ArrayLike, DTypeLike


class ArrayWriter:
    """Writes a .npy file of rows of one shape: the bytes that np.save would write of all pieces together."""

    def __init__(self, path: Path, dtype: DTypeLike, row: tuple[int, ...] = ()) -> None:
        self._dtype, self._row, self.length = np.dtype(dtype), row, 0
        self._file = path.open("wb")
        self._write_header()

    def append(self, values: ArrayLike) -> None:
        """Write values [n, *row] after those before."""
        array = np.ascontiguousarray(values, self._dtype)
        self._file.write(array.data)
        self.length += len(array)

    def __enter__(self) -> "ArrayWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Complete the file. After an error, only close it."""
        with self._file:
            if error is None:
                self._file.seek(0)
                self._write_header()  # numpy leaves room for any length

    def _write_header(self) -> None:
        descr = npy.dtype_to_descr(self._dtype)
        npy.write_array_header_1_0(
            self._file, {"descr": descr, "fortran_order": False, "shape": (self.length, *self._row)}
        )
