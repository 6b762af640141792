"""Bounded reading of files that may come from somebody else."""

import json
from pathlib import Path
from typing import TypeGuard

from common.errors import UserError, error_reason, one_line

MAX_BYTES = 16 << 20  # largest config, summary or state that is read; the largest runs have some hundred kilobytes
MAX_COUNT = 2**53  # whole numbers below it are exact in JSON readers that use float64


def check_no_pipe(file: Path) -> None:
    """Raise UserError if a path cannot be accessed, or is a pipe or a device, whose content may never end."""
    try:
        is_pipe = file.exists() and not file.is_file() and not file.is_dir()
    except OSError as error:  # the name may be too long, for example
        raise UserError(f"{file}: cannot be read: {error_reason(error)}") from error
    if is_pipe:
        raise UserError(f"{file}: is a pipe or a device, not a file; remove it")


def read_bytes(file: Path, max_bytes: int | None = None) -> bytes:
    """Return the content of a file. Raise UserError if it cannot be read or has more than `max_bytes`."""
    check_no_pipe(file)
    try:
        with file.open("rb") as opened:
            content = opened.read(-1 if max_bytes is None else max_bytes + 1)
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error_reason(error)}") from error
    if max_bytes is not None and len(content) > max_bytes:
        raise UserError(f"{file}: has more than {max_bytes >> 20} MiB, which no run writes into such a file")
    return content


def read_json_object(file: Path) -> dict[str, object]:
    """Return the content of a JSON file that holds one object. Raise UserError."""
    content = read_bytes(file, MAX_BYTES)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not valid JSON: {one_line(error)}") from error
    if not isinstance(value, dict):
        raise UserError(f"{file}: not a JSON object")
    return value


def is_number(value: object, null: bool = False) -> TypeGuard[float | None]:
    """Check whether a JSON value is a number that a float can hold. `null`: whether None counts as a number."""
    if value is None:
        return null
    # JSON has integers of any size; a float holds those below 2**1024.
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**1000)


def is_count(value: object) -> TypeGuard[int]:
    """Check whether a JSON value is a whole number from 0 on, such as a step."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_COUNT
