"""Writer of arrays that are never in memory as a whole."""

from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.lib import format as npy
from numpy.typing import ArrayLike, DTypeLike


class ArrayWriter:
    """Writer of a .npy file, row by row. The file has the same bytes as `np.save` of all rows together.

    Attributes:
        length: Number of rows that were written so far.
    """

    def __init__(self, path: Path, dtype: DTypeLike, row_shape: tuple[int, ...] = ()) -> None:
        self.length = 0
        self._dtype, self._row_shape = np.dtype(dtype), row_shape
        self._file = path.open("wb")
        self._write_header()

    def append(self, values: ArrayLike) -> None:
        """Write further rows: values [n, *row_shape]."""
        array = np.ascontiguousarray(values, self._dtype)
        self._file.write(array.data)
        self.length += len(array)

    def __enter__(self) -> "ArrayWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Complete the file. After an error, only close it."""
        with self._file:
            if error is None:
                self._file.seek(0)
                self._write_header()  # NumPy pads the header, so any length fits in the same space

    def _write_header(self) -> None:
        descr = npy.dtype_to_descr(self._dtype)
        npy.write_array_header_1_0(
            self._file, {"descr": descr, "fortran_order": False, "shape": (self.length, *self._row_shape)}
        )
