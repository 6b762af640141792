"""Batches with two axes of examples, such as the steps and the environments of an agent: [steps, environments, ...].

A script may merge these axes to the rows that its model receives. A record has the rows, in the order in which NumPy
flattens the axes.
"""

import math
from collections.abc import Mapping

import numpy as np


def merge_axes(array: np.ndarray, count: int) -> np.ndarray:
    """Return an array [a, b, ...] with a * b = count examples as [count, ...], and other arrays unchanged."""
    if array.ndim < 2 or len(array) == count or math.prod(array.shape[:2]) != count:
        return array
    return array.reshape(count, *array.shape[2:])


def find_merged_axes(leaves: Mapping[str, np.ndarray], count: int) -> tuple[int, ...] | None:
    """Return the sizes of the first two axes if all arrays of a batch have them in common, and `count` examples."""
    sizes = {leaf.shape[:2] for leaf in leaves.values()}
    axes = sizes.pop() if len(sizes) == 1 else ()
    has_features = any(leaf.ndim > 2 for leaf in leaves.values())
    return axes if has_features and len(axes) == 2 and count not in axes and math.prod(axes) == count else None
