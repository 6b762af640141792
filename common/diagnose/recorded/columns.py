"""Columns of a table that one script keeps in an array each, and another script in one matrix.

A column is [n] or [n, 1] for n examples, and a matrix [n, k]. Integers and other numbers are in different matrices.
"""

from collections.abc import Mapping

import numpy as np

from common.diagnose.recorded.example_axis import numbers_examples

Arrays = Mapping[str, np.ndarray]


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
    return joined


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
    return split


def _find_matrix(columnar: Arrays, tabular: Arrays, is_float: bool) -> str | None:
    """Return the only matrix of one script, if the other script has as many columns more in its place; else None."""
    matrices = _list_matrices(tabular, is_float)
    count = len(_list_columns(columnar, is_float)) - len(_list_columns(tabular, is_float))
    if len(matrices) != 1 or _list_matrices(columnar, is_float) or tabular[matrices[0]].shape[1] != count:
        return None
    return matrices[0]


def _list_columns(arrays: Arrays, is_float: bool) -> list[str]:
    return [name for name, x in arrays.items() if x.shape[1:] in ((), (1,)) and (x.dtype.kind == "f") == is_float]


def _list_matrices(arrays: Arrays, is_float: bool) -> list[str]:
    """Return the names of the matrices, without those that only number the examples, such as the offsets of bags."""
    matrices = [name for name, x in arrays.items() if x.ndim == 2 and x.shape[1] > 1]
    return [x for x in matrices if (arrays[x].dtype.kind == "f") == is_float and not numbers_examples(arrays[x])]
