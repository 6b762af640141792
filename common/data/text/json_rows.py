"""JSON as rows of the columns that a config names: an object per line, or one array of objects."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.data.required_columns import RequiredColumns, check_columns
from common.data.text.utf8_files import read_lines, read_pieces
from common.errors import UserError

LONGEST_LITERAL = 16  # characters that an error may be before the end of a text that is only incomplete


def is_json_array(path: Path) -> bool:
    """Whether a JSON file is one array, and not one object per line."""
    return next((text.lstrip().startswith("[") for text in read_pieces(path) if text.strip()), False)


def read_json_lines(path: Path, columns: RequiredColumns) -> Iterator[tuple[int, list[Any]]]:
    """One object per line; empty lines are skipped."""
    for number, line in read_lines(path):
        if line.strip():
            at = f"{path}:{number}"
            try:
                row = json.loads(line.rstrip())
            except json.JSONDecodeError as error:
                raise _not_json(at, error.msg, error.lineno, error.colno) from None
            except (ValueError, RecursionError) as error:
                raise _not_json(at, str(error)) from None
            yield number, _values(at, row, columns)


def read_json_array(path: Path, columns: RequiredColumns) -> Iterator[tuple[int, list[Any]]]:
    """The objects of one array, counted from 1. Only one of them is held at a time."""
    array, number = _Array(path), 0
    array.take("[", "Expecting value")
    while array.next() != "]":
        if number:
            array.take(",", "Expecting ',' delimiter")
        number += 1
        yield number, _values(f"{path}: row {number}", array.value(), columns)
    array.take("]", "")
    if array.next():
        raise array.error("Extra data")


class _Array:
    """The text of an array while it is parsed: `text[at:]` is left, `line` and `column` are where `text` begins."""

    def __init__(self, path: Path) -> None:
        self.path, self._pieces = path, read_pieces(path)
        self.text, self.at, self.line, self.column = "", 0, 1, 1
        self._decode = json.JSONDecoder().raw_decode

    def next(self) -> str:
        """The next character that is not a space, which stays; "" at the end of the file."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
                self.at += 1
            if self.at < len(self.text):
                return self.text[self.at]
            if not self._read_more():
                return ""

    def take(self, character: str, problem: str) -> None:
        """Go past this character; `problem` says what is wrong if it is not the next one."""
        if self.next() != character:
            raise self.error(problem)
        self.at += 1

    def value(self) -> Any:
        """The next value."""
        self.next()
        while True:
            try:
                value, self.at = self._decode(self.text, self.at)
                return value
            except json.JSONDecodeError as error:
                problem, distance = error.msg, error.pos - self.at
                complete = error.pos < len(self.text) - LONGEST_LITERAL and "Unterminated" not in problem
                if complete or not self._read_more():
                    raise self.error(problem, self.at + distance) from None
            except (ValueError, RecursionError) as error:
                raise _not_json(str(self.path), str(error)) from None

    def error(self, problem: str, at: int | None = None) -> UserError:
        """An error that names the line and the column."""
        line, column = self._place(self.at if at is None else at)
        return _not_json(str(self.path), problem, line, column)

    def _place(self, at: int) -> tuple[int, int]:
        newlines = self.text.count("\n", 0, at)
        return self.line + newlines, at - self.text.rfind("\n", 0, at) if newlines else self.column + at

    def _read_more(self) -> bool:
        """Drop what was parsed and read at least as much as is left; False at the end of the file."""
        self.line, self.column = self._place(self.at)
        self.text, self.at = self.text[self.at :], 0
        read, characters = [], 0
        for piece in self._pieces:
            read.append(piece)
            characters += len(piece)
            if characters >= len(self.text):
                break
        self.text += "".join(read)
        return bool(read)


def _not_json(at: str, problem: str, line: int = 1, column: int | None = None) -> UserError:
    place = f" at {f'line {line}, ' if line > 1 else ''}column {column}" if column else ""
    return UserError(f"{at}: not JSON ({problem}{place}); write one object per line, or one array of objects")


def _values(at: str, row: Any, columns: RequiredColumns) -> list[Any]:
    if not isinstance(row, dict):
        raise UserError(f"{at}: {type(row).__name__}, not an object; write one object per row")
    check_columns(at, columns, row)
    return [row[name] for _, name in columns]
