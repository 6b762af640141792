"""Readers for the .jsonl files of a run directory, which have one JSON object with a `step` in each line.

Errors name the file, the line and the malformed value.
"""

import math
from pathlib import Path

import numpy as np

from common.errors import UserError
from common.records.files import is_number
from common.records.rows import iterate_rows, list_metrics

BLOCK_BYTES = 1 << 20  # bytes that Arrow parses at once
# Bytes that DataParallel moves in a step: inputs scattered, parameters broadcast, outputs gathered, gradients reduced.
MOVED_KINDS = ("scattered", "broadcast", "gathered", "reduced")
TRAFFIC_KINDS = (*MOVED_KINDS, "logits", "memory")  # and bytes that a replica holds: its logits, and all of its memory

Columns = dict[str, np.ndarray]  # float64 array by field of the rows


def read_columns(
    file: Path, names: tuple[str, ...], notes: list[str], optional: tuple[str, ...] = ()
) -> tuple[np.ndarray, Columns, list[int]]:
    """Read the rows of a .jsonl file into arrays.

    If several rows have the same step, the last one counts.

    Args:
        file: A file with one JSON object in each line.
        names: The fields that every row has. null is read as NaN.
        notes: Receives a note if the last line is incomplete.
        optional: Further fields; NaN in rows that lack them.

    Returns:
        The sorted steps, a float64 array as long as the steps for each field, and the steps that have several rows.

    Raises:
        UserError: A row is malformed; the message names the file and the line.
    """
    # Arrow refuses a malformed file without saying where, so the slower reader then finds the line for the error.
    steps, columns = _read_with_arrow(file, names, optional) or _read_by_row(file, names, optional, notes)
    if len(steps) and not np.all(steps[1:] > steps[:-1]):
        unique_steps, rows_from_end, counts = np.unique(steps[::-1], return_index=True, return_counts=True)
        last_rows = len(steps) - 1 - rows_from_end
        columns = {name: column[last_rows] for name, column in columns.items()}
        return unique_steps, columns, unique_steps[counts > 1].tolist()
    return steps, columns, []


def find_metrics(file: Path) -> tuple[str, ...]:
    """Return the metrics in evals.jsonl, such as accuracy: the fields that have only numbers or null in all rows.

    Fields that every evaluation has, such as loss and seconds, are not among them.
    """
    names: dict[str, bool] = {}  # for each metric, whether all its values are numbers or null
    for _, _, row in iterate_rows(file, []):
        for name in filter(str.isidentifier, list_metrics(row)):
            names[name] = names.get(name, True) and is_number(row[name], null=True)
    return tuple(name for name, has_numbers in names.items() if has_numbers)


def _read_with_arrow(
    file: Path, names: tuple[str, ...], optional: tuple[str, ...]
) -> tuple[np.ndarray, Columns] | None:
    """Read a file with Arrow, ten times as fast as row by row. Return None if a value is not as expected."""
    import pyarrow as pa  # imported here because --help does not need it
    import pyarrow.json as arrow_json

    types = [("step", pa.int64()), *((name, pa.float64()) for name in (*names, *optional))]
    try:
        with pa.OSFile(str(file)) as content:
            table = arrow_json.read_json(
                content,
                arrow_json.ReadOptions(block_size=BLOCK_BYTES),
                arrow_json.ParseOptions(explicit_schema=pa.schema(types), unexpected_field_behavior="ignore"),
            )
    except (pa.ArrowException, OSError, ValueError):
        return None
    steps = table["step"].to_numpy()
    if any(table[name].null_count for name in ("step", *names)) or (len(steps) and not steps.min() >= 0):
        return None
    columns = {name: table[name].to_numpy() for name in (*names, *optional)}
    del table
    pa.default_memory_pool().release_unused()  # saves half a gigabyte for twenty long runs
    return steps, columns


def _read_by_row(
    file: Path, names: tuple[str, ...], optional: tuple[str, ...], notes: list[str]
) -> tuple[np.ndarray, Columns]:
    """Read a file row by row. Raise UserError at the first malformed row."""
    steps: list[int] = []
    rows: list[list[float]] = []
    for position, step, row in iterate_rows(file, notes):
        for name in names:
            if name not in row:
                raise UserError(f"{position}: '{name}' is missing; it must be a number")
        rows.append([_read_number(position, name, row.get(name)) for name in (*names, *optional)])
        steps.append(step)
    table = np.array(rows, dtype=np.float64).reshape(len(steps), len(names) + len(optional))
    columns = {name: table[:, index].copy() for index, name in enumerate((*names, *optional))}
    return np.array(steps, dtype=np.int64), columns


def _read_number(position: str, name: str, value: object) -> float:
    if not is_number(value, null=True):
        raise UserError(f"{position}: '{name}' must be a number, found {value!r}")
    return math.nan if value is None else float(value)


def read_traffic(file: Path, replicas: int, first_step: int, notes: list[str]) -> Columns:
    """Read traffic.jsonl.

    Args:
        file: The file.
        replicas: The number of replicas of the run.
        first_step: The step since which the run has this number of replicas; earlier rows are left out.
        notes: Receives a note if the last line is incomplete.

    Returns:
        Bytes as float64 [rows, replicas] for each of TRAFFIC_KINDS that the first row has. null is read as NaN.
    """
    rows = [(position, row) for position, step, row in iterate_rows(file, notes) if step >= first_step]
    kinds = [kind for kind in TRAFFIC_KINDS if rows and kind in rows[0][1]]
    for position, row in rows:
        for kind in kinds:
            values = row.get(kind)
            if not isinstance(values, list) or len(values) != replicas or not all(is_number(v, True) for v in values):
                raise UserError(f"{position}: '{kind}' must be a list of {replicas} numbers, found {values!r}")
    return {kind: np.array([row[kind] for _, row in rows], dtype=np.float64) for kind in kinds}
