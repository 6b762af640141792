"""Reads the rows of a .jsonl file into arrays: with Arrow where the file is clean, otherwise row by row."""

import math
from pathlib import Path

import numpy as np

from common.compare.read import is_number, rows_of
from common.errors import UserError

BLOCK = 1 << 20  # bytes that Arrow parses at once


def read_columns(
    file: Path, names: tuple[str, ...], notes: list[str], optional: tuple[str, ...] = ()
) -> tuple[np.ndarray, dict[str, np.ndarray], list[int]]:
    """The sorted steps, a float64 array for each name, and the steps that have more than one row: the last one counts.

    null is NaN, and so is what a row lacks of the `optional` names. Raises UserError that names the file and the line.
    """
    found = _read_clean(file, names, optional)
    steps, table = found or _read_carefully(file, names, optional, notes)
    if len(steps) and not np.all(steps[1:] > steps[:-1]):
        unique, last, counts = np.unique(steps[::-1], return_index=True, return_counts=True)
        rows = len(steps) - 1 - last
        return unique, {name: column[rows] for name, column in table.items()}, unique[counts > 1].tolist()
    return steps, table, []


def _read_clean(
    file: Path, names: tuple[str, ...], optional: tuple[str, ...]
) -> tuple[np.ndarray, dict[str, np.ndarray]] | None:
    """The columns, ten times as fast; None where a value is missing or is not what it should be."""
    import pyarrow as pa  # a command that only says how it is used needs none of it
    import pyarrow.json as arrow_json

    types = [("step", pa.int64()), *((name, pa.float64()) for name in (*names, *optional))]
    try:
        with pa.OSFile(str(file)) as content:
            table = arrow_json.read_json(
                content,
                arrow_json.ReadOptions(block_size=BLOCK),
                arrow_json.ParseOptions(explicit_schema=pa.schema(types), unexpected_field_behavior="ignore"),
            )
    except (pa.ArrowException, OSError, ValueError):
        return None
    steps = table["step"].to_numpy()
    if any(table[name].null_count for name in ("step", *names)) or not _least(steps) >= 0:
        return None
    columns = {name: table[name].to_numpy() for name in (*names, *optional)}
    del table
    pa.default_memory_pool().release_unused()  # else twenty long runs take half a gigabyte more
    return steps, columns


def _least(steps: np.ndarray) -> int:
    return int(steps.min()) if len(steps) else 0


def _read_carefully(
    file: Path, names: tuple[str, ...], optional: tuple[str, ...], notes: list[str]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    steps, rows = [], []
    for where, row in rows_of(file, notes):
        for name in names:
            if name not in row or not is_number(row[name], null=True):
                raise UserError(f"{where}: '{name}' must be a number, found {row.get(name, 'nothing')!r}")
        for name in optional:
            if not is_number(row.get(name), null=True):
                raise UserError(f"{where}: '{name}' must be a number, found {row[name]!r}")
        steps.append(row["step"])
        rows.append([_float(row[name]) for name in names] + [_float(row.get(name)) for name in optional])
    every = (*names, *optional)
    table = np.array(rows, dtype=np.float64).reshape(len(steps), len(every))
    return np.array(steps, dtype=np.int64), {name: table[:, i].copy() for i, name in enumerate(every)}


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
