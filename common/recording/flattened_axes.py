"""The axes that a model merges to one axis when it reshapes an array.

The files that record run in the environment of the script: they import only NumPy, their framework and each
other, and run on Python 3.9.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def find_flattened(before: Sequence[int], after: Sequence[int], axis: int = -1) -> tuple[int, ...] | None:
    """Return the sizes of the axes that a reshape merges to one axis.

    Args:
        before: The shape [n, ...] of the array.
        after: Its shape after the reshape.
        axis: The axis of `after` that is asked for.

    Returns:
        The sizes of two or more axes, or None if the axis is no merged one. None also if the array keeps further axes
        and the merged ones have one size, as the heads of an attention may have: their order cannot be seen then.
    """
    axis %= len(after)
    outer = math.prod(after[:axis])
    starts = [place for place in range(1, len(before)) if math.prod(before[:place]) == outer]
    if axis == 0 or before[0] != after[0] or not starts:
        return None
    has_other_axes = len(after) > 2
    start = starts[-1] if has_other_axes else 1  # axes of size 1 before the merged ones are not merged
    stops = [stop for stop in range(start + 1, len(before) + 1) if math.prod(before[start:stop]) == after[axis]]
    sizes = tuple(before[start : stops[-1]]) if stops else ()
    is_ambiguous = has_other_axes and len(set(sizes)) == 1
    return sizes if len(sizes) > 1 and not is_ambiguous else None
