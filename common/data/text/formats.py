"""File formats: JSON, CSV, TSV and Parquet as rows of the columns that a config names. Errors name file and line."""

import csv
import gzip
import json
import logging
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from common.data.columns import NamedColumns, check_columns
from common.data.hub import one_line
from common.errors import UserError

log = logging.getLogger("lockstep")

TEXT_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv")
DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars"}
LONGEST_FIELD = 2**31 - 1  # characters of a field of CSV; the csv module's own limit is 131,072


def find_file(key: str, name: str) -> tuple[Path, str]:
    """The path of a file that can be read, and its suffix in lower case without .gz."""
    if not name:
        raise UserError(f"{key}: has no value; give {key}=...")
    path = Path(name).expanduser()
    suffix = (path.with_suffix("") if _is_gzip(path) else path).suffix.lower()
    if not path.is_file():
        raise UserError(f"{key}: {'not a file' if path.exists() else 'no such file'}: {name}")
    if suffix not in TEXT_SUFFIXES and (suffix != ".parquet" or _is_gzip(path)):
        raise UserError(f"{key}: unknown suffix: {name}; use {', '.join(TEXT_SUFFIXES)} (each also + .gz) or .parquet")
    if path.stat().st_size == 0:
        raise UserError(f"{key}: empty file: {name}")
    return path, suffix


def _is_gzip(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with gzip.open(path, "rb") if _is_gzip(path) else open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if number == 1 and b"\0" in line:
                    raise UserError(f"{path}: UTF-16, or not a text file; save it as UTF-8 (in Excel: CSV UTF-8)")
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    place = f"byte {error.start + 1} of the line"
                    raise UserError(f"{path}:{number}: not UTF-8 at {place}; save the file as UTF-8") from None
                yield number, text
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error


def is_json_array(path: Path) -> bool:
    """Whether a JSON file is one array, and not one object per line."""
    return next((text.lstrip().startswith("[") for text in _texts(path) if text.strip()), False)


def json_lines(path: Path, columns: NamedColumns) -> Iterator[tuple[int, list[Any]]]:
    """One object per line; empty lines are skipped."""
    for number, line in _lines(path):
        if line.strip():
            at = f"{path}:{number}"
            yield number, _values(at, _parse(at, line.rstrip()), columns)


def json_array(path: Path, columns: NamedColumns) -> Iterator[tuple[int, list[Any]]]:
    """The objects of one array, which is read as a whole. They are counted from 1."""
    for number, row in enumerate(_parse(str(path), "".join(_texts(path))), 1):
        yield number, _values(f"{path}: row {number}", row, columns)


def _parse(at: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error)
        if isinstance(error, json.JSONDecodeError):
            reason = f"{error.msg} at {f'line {error.lineno}, ' if error.lineno > 1 else ''}column {error.colno}"
        raise UserError(f"{at}: not JSON ({reason}); write one object per line, or one array of objects") from None


def _values(at: str, row: Any, columns: NamedColumns) -> list[Any]:
    if not isinstance(row, dict):
        raise UserError(f"{at}: {type(row).__name__}, not an object; write one object per row")
    check_columns(at, columns, row)
    return [row[name] for _, name in columns]


def separated(path: Path, suffix: str, columns: NamedColumns) -> Iterator[tuple[int, list[str]]]:
    """CSV with the usual quotes, or TSV, where a quote is a character like any other. The first row is the header.

    A file whose header has the columns only with another delimiter is read as CSV with that delimiter.
    """
    csv.field_size_limit(LONGEST_FIELD)
    if suffix == ".csv":
        reader = csv.reader(_texts(path), strict=True)
    else:
        reader = csv.reader(_texts(path), delimiter="\t", quoting=csv.QUOTE_NONE)
    number = 1
    try:
        header = next(reader, [])
        if not "".join(header).strip():
            raise UserError(f"{path}:1: an empty line; the first line must name the columns")
        delimiter = _other_delimiter(path, header, columns)
        if delimiter:
            reader = csv.reader(_texts(path), delimiter=delimiter, strict=True)
            header = next(reader)
        check_columns(f"{path}:1", columns, header)
        if delimiter:
            log.info("%s: read as CSV separated by %s", path, DELIMITERS[delimiter])
        picked = [header.index(name) for _, name in columns]
        number = reader.line_num + 1
        for row in reader:
            if row and len(row) != len(header):
                quoted = delimiter or suffix == ".csv"
                remedy = "put quotes around a text with a delimiter" if quoted else "no text may have a tab"
                raise UserError(f"{path}:{number}: {len(row)} columns where the header has {len(header)}; {remedy}")
            if row:
                yield number, [row[i] for i in picked]
            number = reader.line_num + 1  # a quoted field may span lines
    except csv.Error as error:
        reason = f"{error}; close each quote, and write a quote within a text as two"
        if "new-line character" in str(error):
            reason = "a carriage return within a line; save it with lines that end in LF or CRLF"
        raise UserError(f"{path}:{number}: {reason}") from None


def _texts(path: Path) -> Iterator[str]:
    return (line for _, line in _lines(path))


def _other_delimiter(path: Path, header: list[str], columns: NamedColumns) -> str | None:
    """The delimiter that gives more of the columns than this header has; where none are found, more of any columns."""

    def rank(found: list[str]) -> tuple[int, int]:
        return sum(name in found for _, name in columns), len(found)

    if rank(header)[0] == len(columns):
        return None
    first = next(_texts(path), "")
    headers = {delimiter: next(csv.reader([first], delimiter=delimiter)) for delimiter in DELIMITERS}
    best = max(headers, key=lambda delimiter: rank(headers[delimiter]))
    return best if rank(headers[best]) > rank(header) else None


def parquet(path: Path, columns: NamedColumns) -> Iterator[tuple[int, Sequence[Any]]]:
    """The rows of a Parquet file, read a batch at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            check_columns(str(path), columns, file.schema_arrow.names)
            yield from arrow_rows(file.iter_batches(columns=[name for _, name in columns]), columns)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: cannot be read: {one_line(error)}") from error


def arrow_rows(batches: Iterable[Any], columns: NamedColumns) -> Iterator[tuple[int, Sequence[Any]]]:
    """The rows of Arrow record batches."""
    tables = ([batch.column(name).to_pylist() for _, name in columns] for batch in batches)
    return enumerate((row for table in tables for row in zip(*table, strict=True)), 1)
