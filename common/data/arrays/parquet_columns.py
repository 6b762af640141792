"""Reader of the columns of Parquet files.

NumPy maps only .npy files to memory. So the columns are unpacked to .npy files in the directory `scratch`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from common.data.array_writer import ArrayWriter
from common.data.arrays.array_readers import LoadedArrays, open_npy, report_damage
from common.data.splits.array_column import Column
from common.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

BATCH = 4096  # rows that are read at once


def read_parquet(path: Path, scratch: Path) -> LoadedArrays:
    """Return the columns of a Parquet file.

    A column of lists is a ragged `Column`, even if all its lists have the same length: the other split may differ.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with report_damage(path, pa.ArrowException, OSError), pq.ParquetFile(path) as file:
        return {
            field.name: _read_column(file, field, f"{path}: {field.name}", scratch / str(number))
            for number, field in enumerate(file.schema_arrow)
        }


def _read_column(file: "pq.ParquetFile", field: "pa.Field", location: str, scratch: Path) -> np.ndarray | Column:
    """Read one column batch by batch, into files whose names begin with `scratch`.

    A value may be within lists of lists. The outermost list of each example may have any length. At each level within
    it, all lists must have the same length, which becomes an axis of the array.
    """
    dtype, depth = _find_dtype(field, location)
    values_path, lengths_path = scratch.with_suffix(".npy"), scratch.with_suffix(".lengths.npy")
    inner_lengths: list[set[int]] = [set() for _ in range(1, depth)]  # distinct lengths of the lists at each level
    with ArrayWriter(values_path, dtype) as values, ArrayWriter(lengths_path, np.int64) as outer_lengths:
        start = 0
        for batch in file.iter_batches(BATCH, columns=[field.name]):
            array = batch.column(0)
            for level in range(depth):
                _check_nulls(array, location, start if level == 0 else None)
                lengths = _list_lengths(array)
                if level == 0:
                    outer_lengths.append(lengths)
                else:
                    inner_lengths[level - 1].update(lengths.tolist())
                array = array.flatten()
            _check_nulls(array, location, None if depth else start)
            values.append(array.to_numpy(zero_copy_only=False))
            start += len(batch)
    if not values.length:
        raise UserError(f"{location} has no values; fill it in or leave it out")
    for sizes in inner_lengths:
        if len(sizes) > 1:
            raise UserError(
                f"{location} has inner lists of {min(sizes)} and of {max(sizes)} values; only the outer may differ"
            )
    array = open_npy(values_path, location).reshape(-1, *(size for sizes in inner_lengths for size in sizes))
    if not depth:
        return array
    return Column(array, np.concatenate(([0], np.cumsum(np.load(lengths_path)))))


def _find_dtype(field: "pa.Field", location: str) -> tuple[np.dtype, int]:
    """Return the NumPy type of a column's values and the number of lists around each value."""
    value_type, depth = field.type, 0
    while hasattr(value_type, "value_field"):
        value_type, depth = value_type.value_type, depth + 1
    try:
        dtype = np.dtype(value_type.to_pandas_dtype())
    except (NotImplementedError, TypeError):
        dtype = np.dtype(object)
    if dtype.kind not in "biuf":
        raise UserError(f"{location} is {field.type}; use numbers, bools or lists of them, or leave it out")
    return dtype, depth


def _list_lengths(array: "pa.Array") -> np.ndarray:
    """Return the length of each list, int64 [n]."""
    import pyarrow.compute as pc

    lengths: np.ndarray = pc.list_value_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def _check_nulls(array: "pa.Array", location: str, start: int | None) -> None:
    """Raise UserError if an array has a null.

    Args:
        array: Values of one batch.
        location: File and column, for the error.
        start: Index of the batch's first example; None for values within lists.
    """
    if array.null_count:
        index = array.is_null().to_numpy(zero_copy_only=False).argmax()
        problem = f"[{start + index}] is null" if start is not None else " has a null within a list"
        raise UserError(f"{location}{problem}; fill it in or remove the example")
