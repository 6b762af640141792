"""Notation of an index such as `[:, -1]`, as Python writes it: one for all frameworks, in operations.json.

The files that record run in the environment of the script: they import only NumPy, their framework and each
other, and run on Python 3.9.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def write_index(index: object) -> str:
    """Return an index in Python's notation. A tensor within it has its dtype and its shape, as in `[:, int64[8]]`."""
    items = index if isinstance(index, tuple) else (index,)
    return f"[{', '.join(map(_write_item, items))}]"


def write_axis_index(index: object, axis: int, rank: int) -> str:
    """Return the notation of an index of a single axis, which may be negative, of a tensor of `rank` axes."""
    return write_index((*[slice(None)] * (axis % rank), index))


def write_flip(axes: Sequence[int], rank: int) -> str:
    """Return the notation of an index that reverses axes, which may be negative, of a tensor of `rank` axes."""
    reversed_axes = {axis % rank for axis in axes}
    steps = [-1 if axis in reversed_axes else None for axis in range(max(reversed_axes, default=-1) + 1)]
    return write_index(tuple(slice(None, None, step) for step in steps) or Ellipsis)


def write_length(start: int, length: int, size: int) -> slice:
    """Return the slice of an axis of `size` elements that begins at `start`, which may be negative."""
    start %= size or 1
    return slice(start or None, None if start + length == size else start + length)


def _write_item(item: object) -> str:
    if item is Ellipsis:
        return "..."
    if isinstance(item, slice):
        bounds = ":".join("" if x is None else _write_item(x) for x in (item.start, item.stop))
        return bounds if item.step is None else f"{bounds}:{_write_item(item.step)}"
    if item is None or isinstance(item, (bool, int, np.integer)):
        return str(item)
    if isinstance(item, (list, tuple)):
        return f"[{','.join(map(_write_item, item))}]"
    return _describe_tensor(item)


def _describe_tensor(tensor: object) -> str:
    shape: Sequence[int] = getattr(tensor, "shape", ())
    dtype = str(getattr(tensor, "dtype", type(tensor).__name__)).rpartition(".")[2]
    return f"{dtype}[{','.join(map(str, shape))}]"
