"""Outputs that one model returns as one array, and the other model as several arrays.

A is the reference record of a diagnosis, and B the record that is compared with it.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations

import numpy as np

from common.map.array_differences import relative_difference

Arrays = Mapping[str, np.ndarray]
MOST_PARTS = 4  # largest number of outputs that are tried in every order


def join_outputs(a: Arrays, b: Arrays) -> tuple[Arrays, Arrays]:
    """Join one side's several outputs if the other side returns a single array of the same total size.

    The outputs are joined along the axis, and in the order, that bring them closest to the single array. A detector,
    for example, may return boxes and classes, or both in the last axis.

    Args:
        a: The outputs of A by name, each with an example in each row.
        b: The outputs of B.

    Returns:
        The outputs of both sides. Outputs that do not fit are returned unchanged.
    """
    if len(a) == 1 < len(b) <= MOST_PARTS:
        (name, whole), *_ = a.items()
        joined = _join([*b.values()], whole)
        return a, b if joined is None else {name: joined}
    if len(b) == 1 < len(a) <= MOST_PARTS:
        (name, whole), *_ = b.items()
        joined = _join([*a.values()], whole)
        return a if joined is None else {name: joined}, b
    return a, b


def _join(parts: Sequence[np.ndarray], whole: np.ndarray) -> np.ndarray | None:
    """Return the parts as one array of the shape of `whole`; None if no axis gives it."""
    candidates: list[np.ndarray] = []
    for axis in range(1, whole.ndim if all(part.ndim == whole.ndim for part in parts) else 1):
        shapes = {(*part.shape[:axis], *part.shape[axis + 1 :]) for part in parts}
        has_size = sum(part.shape[axis] for part in parts) == whole.shape[axis]
        if has_size and shapes == {(*whole.shape[:axis], *whole.shape[axis + 1 :])}:
            candidates += [np.concatenate(order, axis) for order in permutations(parts)]
    candidates += _stack(parts, whole)
    return min(candidates, key=lambda joined: relative_difference(whole, joined), default=None)


def _stack(parts: Sequence[np.ndarray], whole: np.ndarray) -> list[np.ndarray]:
    """Return the parts along a new axis in every order and layout that gives the shape of `whole`, if any does.

    The networks of an hourglass, for example, return one array of heatmaps each, or all of them in the second axis.
    """
    if any(part.ndim < 2 or part.ndim + 1 != whole.ndim or part.shape != parts[0].shape for part in parts):
        return []
    layouts = [[*parts], [np.moveaxis(part, -1, 1) for part in parts], [np.moveaxis(part, 1, -1) for part in parts]]
    stacked = (
        np.stack(order, axis)
        for axis in range(1, whole.ndim)
        if whole.shape[axis] == len(parts)
        for layout in layouts
        for order in permutations(layout)
    )
    return [array for array in stacked if array.shape == whole.shape]
