"""JSON files, read as rows of the columns that the config names: one object per line, or one array of objects.

The array is parsed with the standard library, one object at a time. ijson would lose the line and column of an error,
refuses the NaN that Python's `json` writes and integers of more than 64 bits, and replaces lone surrogates silently.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from common.data.required_columns import RequiredColumns, check_columns
from common.data.text.label_types import Cell
from common.data.text.utf8_files import read_lines, read_pieces
from common.errors import UserError

# The window of a file that is parsed may end within a literal such as -Infinity or \ud83d\ude00. So an error in the
# last characters of the window is taken seriously only after more of the file was read.
LONGEST_LITERAL = 16


def is_json_array(path: Path) -> bool:
    """Check whether a JSON file is one array, and not one object per line."""
    return next((text.lstrip().startswith("[") for text in read_pieces(path) if text.strip()), False)


def read_json_lines(path: Path, columns: RequiredColumns) -> Iterator[tuple[int, list[Cell]]]:
    """Yield each line that is not empty: its number, and the values of the columns."""
    for number, line in read_lines(path):
        if line.strip():
            location = f"{path}:{number}"
            try:
                row = json.loads(line.rstrip())
            except json.JSONDecodeError as error:
                raise _not_json(location, error.msg, error.lineno, error.colno) from None
            except (ValueError, RecursionError) as error:
                raise _not_json(location, str(error)) from None
            yield number, _select_values(location, row, columns)


def read_json_array(path: Path, columns: RequiredColumns) -> Iterator[tuple[int, list[Cell]]]:
    """Yield each object of an array: its number, from 1, and the values of the columns. Only one object is held."""
    parser, number = _ArrayParser(path), 0  # the problems below are worded as Python's json words them
    parser.expect("[", "Expecting value")
    while parser.peek() != "]":
        if number:
            parser.expect(",", "Expecting ',' delimiter")
        number += 1
        yield number, _select_values(f"{path}: row {number}", parser.parse_value(), columns)
    parser.expect("]", "")
    if parser.peek():
        raise parser.error("Extra data")


class _ArrayParser:
    """Parser of a JSON array that holds only a window of the file's text, which `_read_more` moves on.

    Attributes:
        text: The window.
        position: Index in the window of the first character that is not parsed.
        line: Line of the file in which the window begins, from 1.
        column: Column of the file at which the window begins, from 1.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._pieces = path, read_pieces(path)
        self.text, self.position, self.line, self.column = "", 0, 1, 1
        self._decode = json.JSONDecoder().raw_decode

    def peek(self) -> str:
        """Skip white space and return the next character without consuming it, or "" at the end of the file."""
        while True:
            while self.position < len(self.text) and self.text[self.position] in " \t\r\n":
                self.position += 1
            if self.position < len(self.text):
                return self.text[self.position]
            if not self._read_more():
                return ""

    def expect(self, character: str, problem: str) -> None:
        """Consume the next character. Raise a UserError about `problem` if it is not `character`."""
        if self.peek() != character:
            raise self.error(problem)
        self.position += 1

    def parse_value(self) -> Cell:
        """Consume and return the next value."""
        self.peek()
        while True:
            try:
                value, self.position = self._decode(self.text, self.position)
            except json.JSONDecodeError as error:
                problem, distance = error.msg, error.pos - self.position
                is_complete = error.pos < len(self.text) - LONGEST_LITERAL and "Unterminated" not in problem
                if is_complete or not self._read_more():
                    raise self.error(problem, self.position + distance) from None
            except (ValueError, RecursionError) as error:
                raise _not_json(str(self.path), str(error)) from None
            else:
                return value

    def error(self, problem: str, position: int | None = None) -> UserError:
        """Return an error that names the line and the column of a position, by default of the next character."""
        line, column = self._locate(self.position if position is None else position)
        return _not_json(str(self.path), problem, line, column)

    def _locate(self, position: int) -> tuple[int, int]:
        newlines = self.text.count("\n", 0, position)
        column = position - self.text.rfind("\n", 0, position) if newlines else self.column + position
        return self.line + newlines, column

    def _read_more(self) -> bool:
        """Drop the parsed text and read at least as much as remains. Return False at the end of the file."""
        self.line, self.column = self._locate(self.position)
        self.text, self.position = self.text[self.position :], 0
        pieces, characters = [], 0
        for piece in self._pieces:
            pieces.append(piece)
            characters += len(piece)
            if characters >= len(self.text):
                break
        self.text += "".join(pieces)
        return bool(pieces)


def _not_json(location: str, problem: str, line: int = 1, column: int | None = None) -> UserError:
    place = f" at {f'line {line}, ' if line > 1 else ''}column {column}" if column else ""
    return UserError(f"{location}: not JSON ({problem}{place}); write one object per line, or one array of objects")


def _select_values(location: str, row: Cell, columns: RequiredColumns) -> list[Cell]:
    if not isinstance(row, dict):
        raise UserError(f"{location}: {type(row).__name__}, not an object; write one object per row")
    check_columns(location, columns, row)
    return [row[name] for _, name in columns]
