"""Zeros around arrays: one model may pad before a layer, and the other within it.

A is the reference run of a diagnosis, and B the run that is compared with it. A border is the number of slices at the
start and at the end of an axis that contain only zeros.
"""

import numpy as np

from common.diagnose.rounding import is_close

Border = tuple[int, int]  # number of slices of zeros at the start and at the end of an axis


def measure_border(array: np.ndarray, axis: int) -> Border:
    """Return the border of an array along an axis; (0, 0) if the array contains only zeros."""
    is_used = np.asarray(array.any(tuple(other for other in range(array.ndim) if other != axis)))
    if not is_used.any():
        return 0, 0
    return int(is_used.argmax()), int(is_used[::-1].argmax())


def fit_borders(array: np.ndarray, target: np.ndarray) -> np.ndarray | None:
    """Return A's array with the borders of B's array instead of its own.

    Return None if the arrays have the same shape, or different shapes even without their borders.

    Args:
        array: A's array [n, ...].
        target: B's array [n, ...] in the same layout.
    """
    if array.ndim < 3 or array.ndim != target.ndim or len(array) != len(target) or array.shape == target.shape:
        return None
    widths, core = [(0, 0)], [slice(None)]
    for axis in range(1, array.ndim):
        border, target_border = (0, 0), (0, 0)
        if array.shape[axis] != target.shape[axis]:
            border, target_border = measure_border(array, axis), measure_border(target, axis)
        if array.shape[axis] - sum(border) != target.shape[axis] - sum(target_border):
            return None
        core.append(slice(border[0], array.shape[axis] - border[1]))
        widths.append(target_border)
    return np.pad(array[tuple(core)], widths)


def strip_borders(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]] | None:
    """Remove the border of zeros that two arrays of one shape have in common. Return None if there is no such border.

    Returns:
        Both arrays, and the number of slices that were removed at the start of each axis.
    """
    starts, core = [0], [slice(None)]
    for axis in range(1, a.ndim):
        start, end = (min(sizes) for sizes in zip(measure_border(a, axis), measure_border(b, axis), strict=True))
        starts.append(start)
        core.append(slice(start, a.shape[axis] - end))
    stripped = a[tuple(core)], b[tuple(core)]
    return None if stripped[0].shape == a.shape else (*stripped, tuple(starts))


def describe_shift(a: np.ndarray, b: np.ndarray) -> str | None:
    """Describe by how much B's array is A's array shifted along the axes, such as "+1 along axis 2", or return None.

    The elements at the edges that the move uncovers must be zeros.
    """
    axes = range(1, a.ndim)
    borders_a, borders_b = ([measure_border(array, axis) for axis in axes] for array in (a, b))
    moves = {}
    core_a, core_b = [slice(None)], [slice(None)]
    for axis, border_a, border_b in zip(axes, borders_a, borders_b, strict=True):
        move = border_b[0] - border_a[0]
        if move and border_a[1] - border_b[1] == move:
            moves[axis] = move
        else:
            border_a = border_b = 0, 0
        core_a.append(slice(border_a[0], a.shape[axis] - border_a[1]))
        core_b.append(slice(border_b[0], b.shape[axis] - border_b[1]))
    if not moves or not is_close(a[tuple(core_a)], b[tuple(core_b)]):
        return None
    return " and ".join(f"{move:+d} along axis {axis}" for axis, move in moves.items())
