"""Parquet files and Arrow record batches, read as rows of the columns that the config names."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common.data.required_columns import RequiredColumns, check_columns
from common.data.text.label_types import Cell
from common.errors import UserError, describe_error

if TYPE_CHECKING:
    import pyarrow as pa

BATCH = 4096  # rows that are read at once


def read_parquet_rows(path: Path, columns: RequiredColumns) -> Iterator[tuple[int, Sequence[Cell]]]:
    """Yield each row of a Parquet file: its number, from 1, and the values of the columns.

    Raises:
        UserError: If the file cannot be read or does not have the columns.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            check_columns(str(path), columns, file.schema_arrow.names)
            yield from iterate_arrow_rows(file.iter_batches(BATCH, columns=[name for _, name in columns]), columns)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: cannot be read: {describe_error(error)}") from error


def iterate_arrow_rows(
    batches: "Iterable[pa.RecordBatch]", columns: RequiredColumns
) -> Iterator[tuple[int, Sequence[Cell]]]:
    """Yield each row of the record batches: its number, from 1, and the values of the columns."""
    column_values = ([batch.column(name).to_pylist() for _, name in columns] for batch in batches)
    return enumerate((row for values in column_values for row in zip(*values, strict=True)), 1)
