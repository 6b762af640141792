"""Outputs of which one model returns more along an axis, such as a first time step that its script cuts off."""

from dataclasses import replace

import numpy as np

from common.diagnose.recorded.example_order import ArrayPair
from common.diagnose.rounding import is_close

EQUAL = 1e-4  # largest relative error of outputs that count as equal here


def cut_outputs(outputs: ArrayPair) -> ArrayPair:
    """Cut the longer output at its begin or its end, if the part that is cut off is 0 or the remaining ones are equal.

    Args:
        outputs: The outputs of both models [n, ...]. If they have one size, they are returned unchanged.
    """
    a, b = outputs.a, outputs.b
    differing = [axis for axis in range(1, a.ndim) if a.ndim == b.ndim and a.shape[axis] != b.shape[axis]]
    if len(differing) != 1 or a.dtype.kind != "f" or b.dtype.kind != "f":
        return outputs
    axis = differing[0]
    longer, shorter = (a, b) if a.shape[axis] > b.shape[axis] else (b, a)
    size = shorter.shape[axis]
    at_begin, at_end = np.split(longer, [size], axis), np.split(longer, [longer.shape[axis] - size], axis)
    candidates = [(at_end[1], at_end[0]), (at_begin[0], at_begin[1])]
    fitting = [kept for kept, removed in candidates if not removed.any()]
    if len(a) == len(b):
        fitting += [kept for kept, _ in candidates if is_close(kept, shorter, EQUAL)]
    if not fitting:
        return outputs
    return replace(outputs, a=fitting[0]) if longer is a else replace(outputs, b=fitting[0])
