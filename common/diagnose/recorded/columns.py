"""Columns of a table that one script keeps in an array each, and another script in one matrix.

A column is [n] or [n, 1] for n examples, and a matrix [n, k]. Integers and other numbers are in different matrices, or
all in one: a block is a column or a matrix whose columns are some of a wider matrix.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping

import numpy as np

from common.diagnose.recorded.example_axis import numbers_examples
from common.diagnose.recorded.followed_arrays import OTHER

Arrays = Mapping[str, np.ndarray]


def adapt_columns(arrays: Arrays, examples: Arrays, add_note: Callable[[str], None]) -> dict[str, np.ndarray]:
    """Join or split columns of a table as a script's batch has them.

    Args:
        arrays: The recorded arrays.
        examples: The script's arrays with a row for each example.
        add_note: Adds a sentence to the record of the script.
    """
    adapted = split_columns(join_columns(arrays, examples), examples)
    if adapted.keys() != arrays.keys():
        add_note(
            "batches: the columns of a table are one array in one script and several in the other: they are taken in "
            "their order; check this"
        )
    return adapted


def join_columns(arrays: Arrays, others: Arrays) -> dict[str, np.ndarray]:
    """Join as many columns as the only matrix of `others` has, in their order. A joined name is "FIRST to LAST".

    Args:
        arrays: The arrays of a batch by name.
        others: The arrays of another script's batch.
    """
    joined = dict(arrays)
    for is_float in (True, False):
        matrix = _find_matrix(arrays, others, is_float)
        if matrix is None:
            continue
        columns = [name for name in _list_columns(arrays, is_float) if name not in _list_columns(others, is_float)]
        names = columns[: others[matrix].shape[1]]
        values = np.concatenate([arrays[name].reshape(-1, 1) for name in names], axis=1)
        title = f"{names[0]} to {names[-1]}"
        joined = {
            key: value
            for name, array in joined.items()
            for key, value in ([(title, values)] if name == names[0] else [(name, array)])
            if name not in names[1:]
        }
    matrix, blocks = _find_blocks(joined, others)
    if matrix is None:
        return joined
    values = np.concatenate([joined.pop(name).reshape(len(others[matrix]), -1) for name in blocks], axis=1)
    return {f"{blocks[0]} to {blocks[-1]}": values.astype(others[matrix].dtype), **joined}


def split_columns(arrays: Arrays, others: Arrays) -> dict[str, np.ndarray]:
    """Split the only matrix into columns with the names "NAME[:, I]" if `others` has as many columns more.

    Args:
        arrays: The arrays of a batch by name.
        others: The arrays of another script's batch.
    """
    split = dict(arrays)
    for is_float in (True, False):
        matrix = _find_matrix(others, arrays, is_float)
        if matrix is None:
            continue
        parts = {f"{matrix}[:, {index}]": column for index, column in enumerate(arrays[matrix].T)}
        split = {
            key: value
            for name, array in split.items()
            for key, value in (parts.items() if name == matrix else [(name, array)])
        }
    matrix, blocks = _find_blocks(others, split)
    if matrix is None:
        return split
    ends = np.cumsum([_count_columns(others[name]) for name in blocks])[:-1]
    columns = np.split(split.pop(matrix), ends, axis=1)
    return {
        f"{matrix} ({name})": _cast(block, others[name]) for name, block in zip(blocks, columns, strict=True)
    } | split


def _find_blocks(blocks: Arrays, tabular: Arrays) -> tuple[str | None, list[str]]:
    """Return the only matrix that one script has alone, and the arrays that the other script has alone: its columns."""
    alone, matrices = _list_alone(blocks, tabular), _list_alone(tabular, blocks)
    are_flat = all(x.ndim <= 2 for name, x in (*blocks.items(), *tabular.items()) if name in (*alone, *matrices))
    if len(matrices) != 1 or not are_flat or tabular[matrices[0]].ndim != 2:
        return None, []
    # A script may cut the labels of its loss from an array of its batch
    for names in (alone, [name for name in alone if not name.startswith(OTHER)]):
        count = sum(_count_columns(blocks[name]) for name in names)
        if len(names) > 1 and _count_columns(tabular[matrices[0]]) == count:
            return matrices[0], names
    return None, []


def _list_alone(arrays: Arrays, others: Arrays) -> list[str]:
    """Return the names of the arrays that have no other one of their shape and kind in the other script."""
    remaining, alone = Counter(map(_describe, others.values())), []
    for name, array in arrays.items():
        if remaining[_describe(array)]:
            remaining[_describe(array)] -= 1
        else:
            alone.append(name)
    return alone


def _describe(array: np.ndarray) -> Hashable:
    return array.shape[2:] if array.shape[1:2] == (1,) else array.shape[1:], array.dtype.kind == "f"


def _count_columns(array: np.ndarray) -> int:
    return array.size // (len(array) or 1)


def _cast(block: np.ndarray, template: np.ndarray) -> np.ndarray:
    """Return columns [n, k] in the shape and the type of the script's array, if that has the same numbers."""
    shaped = block.reshape(len(block), *template.shape[1:])
    cast = shaped.astype(template.dtype)
    return cast if np.array_equal(cast, shaped) else shaped


def _find_matrix(columnar: Arrays, tabular: Arrays, is_float: bool) -> str | None:
    """Return the only matrix of one script, if the other script has as many columns more in its place; else None."""
    matrices = _list_matrices(tabular, is_float)
    columns = [
        len(_list_columns(columnar, kind)) - len(_list_columns(tabular, kind)) for kind in (is_float, not is_float)
    ]
    if len(matrices) != 1 or _list_matrices(columnar, is_float):
        return None
    # A label may be of integers in one script only
    has_columns = columns[0] >= tabular[matrices[0]].shape[1] in (columns[0], sum(columns))
    return matrices[0] if has_columns else None


def _list_columns(arrays: Arrays, is_float: bool) -> list[str]:
    return [name for name, x in arrays.items() if x.shape[1:] in ((), (1,)) and (x.dtype.kind == "f") == is_float]


def _list_matrices(arrays: Arrays, is_float: bool) -> list[str]:
    """Return the names of the matrices, without those that only number the examples, such as the offsets of bags."""
    matrices = [name for name, x in arrays.items() if x.ndim == 2 and x.shape[1] > 1]
    return [x for x in matrices if (arrays[x].dtype.kind == "f") == is_float and not numbers_examples(arrays[x])]
