"""CSV and TSV files, read as rows of the columns that the config names. Errors name the file and the line.

The files are read with Python's csv module. pyarrow.csv would lose the line of a bad row, accepts unclosed and stray
quotes, and needs every record with an embedded newline to fit in one block.
"""

import csv
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from common.data.required_columns import RequiredColumns, check_columns
from common.data.text.utf8_files import read_line_texts
from common.errors import UserError

if TYPE_CHECKING:
    from _csv import Reader

log = logging.getLogger("lockstep")

DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars"}
LONGEST_FIELD = 2**31 - 1  # characters of a field; the csv module's own limit is 131,072


@dataclass(frozen=True)
class CsvDialect:
    """Format of a file of separated values."""

    delimiter: str = ","
    quoted: bool = True  # False: a quote is a character like any other, as in TSV

    def read_records(self, lines: Iterable[str]) -> "Reader":
        """Return a reader of the records in the lines."""
        csv.field_size_limit(LONGEST_FIELD)
        if not self.quoted:
            return csv.reader(lines, delimiter=self.delimiter, quoting=csv.QUOTE_NONE)
        return csv.reader(lines, delimiter=self.delimiter, strict=True)


def find_dialect(path: Path, suffix: str, columns: RequiredColumns) -> CsvDialect:
    """Return the dialect of a file whose first line names the columns.

    A file whose header has the columns only with another delimiter is read as CSV with that delimiter.

    Raises:
        UserError: If the header does not have the columns.
    """
    dialect = CsvDialect("\t", quoted=False) if suffix == ".tsv" else CsvDialect()
    header = _read_header(path, dialect)
    delimiter = _find_better_delimiter(path, header, columns)
    if delimiter:
        dialect = CsvDialect(delimiter)
        header = _read_header(path, dialect)
    check_columns(f"{path}:1", columns, header)
    if delimiter:
        log.info("%s: read as CSV separated by %s", path, DELIMITERS[delimiter])
    return dialect


def read_csv_rows(path: Path, dialect: CsvDialect, columns: RequiredColumns) -> Iterator[tuple[int, list[str]]]:
    """Yield each row that is not empty: the number of its first line, and the values of the columns.

    Raises:
        UserError: If a row cannot be parsed, or has another number of columns than the header.
    """
    reader = dialect.read_records(read_line_texts(path))
    number = 1
    try:
        header = next(reader)
        indices = [header.index(name) for _, name in columns]
        number = reader.line_num + 1
        for row in reader:
            if row and len(row) != len(header):
                remedy = "put quotes around a text with a delimiter" if dialect.quoted else "no text may have a tab"
                raise UserError(f"{path}:{number}: {len(row)} columns, but the header has {len(header)}; {remedy}")
            if row:
                yield number, [row[index] for index in indices]
            number = reader.line_num + 1  # a quoted field may span several lines
    except csv.Error as error:
        raise _malformed(path, number, error) from None


def _read_header(path: Path, dialect: CsvDialect) -> list[str]:
    try:
        header = next(dialect.read_records(read_line_texts(path)), [])
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


def _find_better_delimiter(path: Path, header: list[str], columns: RequiredColumns) -> str | None:
    """Return the delimiter that splits the first line into more of the required columns than `header` has.

    If no delimiter finds a required column, return the delimiter that gives more columns of any name. Return None if no
    delimiter is better.
    """

    def rank(names: list[str]) -> tuple[int, int]:
        return sum(name in names for _, name in columns), len(names)

    if rank(header)[0] == len(columns):
        return None
    first_line = next(read_line_texts(path), "")
    headers = {delimiter: next(csv.reader([first_line], delimiter=delimiter)) for delimiter in DELIMITERS}
    best = max(headers, key=lambda delimiter: rank(headers[delimiter]))
    return best if rank(headers[best]) > rank(header) else None
