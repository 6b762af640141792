"""Columns of a table that one script keeps in an array each, and another script in one matrix.

A column is [n] or [n, 1] for n examples, and a matrix [n, k]. Integers and other numbers are in different matrices.
"""

from collections.abc import Mapping

import numpy as np

Arrays = Mapping[str, np.ndarray]


def join_columns(arrays: Arrays, others: Arrays) -> dict[str, np.ndarray]:
    """Join as many columns as the only matrix of `others` has, in their order. A joined name is "FIRST to LAST".

    Args:
        arrays: The arrays of a batch by name.
        others: The arrays of another script's batch.
    """
    joined = dict(arrays)
    for is_float in (True, False):
        columns, matrices = _list_columns(arrays, is_float), _list_matrices(others, is_float)
        count = len(columns) - len(_list_columns(others, is_float))
        if len(matrices) != 1 or _list_matrices(arrays, is_float) or others[matrices[0]].shape[1] != count:
            continue
        names = [name for name in columns if name not in others][:count]
        matrix = np.concatenate([arrays[name].reshape(-1, 1) for name in names], axis=1)
        title = f"{names[0]} to {names[-1]}"
        joined = {
            key: value
            for name, array in joined.items()
            for key, value in ([(title, matrix)] if name == names[0] else [(name, array)])
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
        matrices = _list_matrices(arrays, is_float)
        count = len(_list_columns(others, is_float)) - len(_list_columns(arrays, is_float))
        if len(matrices) != 1 or _list_matrices(others, is_float) or arrays[matrices[0]].shape[1] != count:
            continue
        parts = {f"{matrices[0]}[:, {index}]": arrays[matrices[0]][:, index] for index in range(count)}
        split = {
            key: value
            for name, array in split.items()
            for key, value in (parts.items() if name == matrices[0] else [(name, array)])
        }
    return split


def _list_columns(arrays: Arrays, is_float: bool) -> list[str]:
    return [name for name, x in arrays.items() if x.shape[1:] in ((), (1,)) and (x.dtype.kind == "f") == is_float]


def _list_matrices(arrays: Arrays, is_float: bool) -> list[str]:
    return [name for name, x in arrays.items() if x.ndim == 2 and x.shape[1] > 1 and (x.dtype.kind == "f") == is_float]
