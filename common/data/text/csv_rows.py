"""CSV, TSV and Parquet as rows of the columns that a config names. Errors name file and line."""

import csv
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from common.data.required_columns import RequiredColumns, check_columns
from common.data.text.utf8_files import read_line_texts
from common.errors import UserError, describe_error

log = logging.getLogger("lockstep")

Dialect = dict[str, Any]  # arguments of csv.reader

DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars"}
LONGEST_FIELD = 2**31 - 1  # characters of a field of CSV; the csv module's own limit is 131,072
BATCH = 4096  # rows of Parquet that are read at once


def find_dialect(path: Path, suffix: str, columns: RequiredColumns) -> Dialect:
    """CSV with the usual quotes, or TSV, where a quote is a character like any other. The first row is the header.

    A file whose header has the columns only with another delimiter is read as CSV with that delimiter. Raises UserError
    for a header without the columns.
    """
    csv.field_size_limit(LONGEST_FIELD)
    dialect: Dialect = {"strict": True}
    if suffix == ".tsv":
        dialect = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    header = _header(path, dialect)
    delimiter = _other_delimiter(path, header, columns)
    if delimiter:
        dialect = {"delimiter": delimiter, "strict": True}
        header = _header(path, dialect)
    check_columns(f"{path}:1", columns, header)
    if delimiter:
        log.info("%s: read as CSV separated by %s", path, DELIMITERS[delimiter])
    return dialect


def read_csv_rows(path: Path, dialect: Dialect, columns: RequiredColumns) -> Iterator[tuple[int, list[str]]]:
    """The rows of CSV or TSV in the dialect that `find_dialect` found."""
    reader = csv.reader(read_line_texts(path), **dialect)
    number = 1
    try:
        header = next(reader)
        picked = [header.index(name) for _, name in columns]
        number = reader.line_num + 1
        for row in reader:
            if row and len(row) != len(header):
                quoted = "strict" in dialect
                remedy = "put quotes around a text with a delimiter" if quoted else "no text may have a tab"
                raise UserError(f"{path}:{number}: {len(row)} columns where the header has {len(header)}; {remedy}")
            if row:
                yield number, [row[i] for i in picked]
            number = reader.line_num + 1  # a quoted field may span lines
    except csv.Error as error:
        raise _malformed(path, number, error) from None


def _header(path: Path, dialect: Dialect) -> list[str]:
    try:
        header = next(csv.reader(read_line_texts(path), **dialect), [])
    except csv.Error as error:
        raise _malformed(path, 1, error) from None
    if not "".join(header).strip():
        raise UserError(f"{path}:1: an empty line; the first line must name the columns")
    return header


def _malformed(path: Path, number: int, error: csv.Error) -> UserError:
    reason = f"{error}; close each quote, and write a quote within a text as two"
    if "new-line character" in str(error):
        reason = "a carriage return within a line; save it with lines that end in LF or CRLF"
    return UserError(f"{path}:{number}: {reason}")


def _other_delimiter(path: Path, header: list[str], columns: RequiredColumns) -> str | None:
    """The delimiter that gives more of the columns than this header has; where none are found, more of any columns."""

    def rank(found: list[str]) -> tuple[int, int]:
        return sum(name in found for _, name in columns), len(found)

    if rank(header)[0] == len(columns):
        return None
    first = next(read_line_texts(path), "")
    headers = {delimiter: next(csv.reader([first], delimiter=delimiter)) for delimiter in DELIMITERS}
    best = max(headers, key=lambda delimiter: rank(headers[delimiter]))
    return best if rank(headers[best]) > rank(header) else None


def read_parquet_rows(path: Path, columns: RequiredColumns) -> Iterator[tuple[int, Sequence[Any]]]:
    """The rows of a Parquet file, read a batch at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            check_columns(str(path), columns, file.schema_arrow.names)
            yield from iterate_arrow_rows(file.iter_batches(BATCH, columns=[name for _, name in columns]), columns)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: cannot be read: {describe_error(error)}") from error


def iterate_arrow_rows(batches: Iterable[Any], columns: RequiredColumns) -> Iterator[tuple[int, Sequence[Any]]]:
    """The rows of Arrow record batches."""
    tables = ([batch.column(name).to_pylist() for _, name in columns] for batch in batches)
    return enumerate((row for table in tables for row in zip(*table, strict=True)), 1)
