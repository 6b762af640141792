"""Linear functions of a whole array, which commute with sums: reductions over tokens or pixels, and transposition."""

from collections.abc import Callable

import numpy as np

# Functions from [n, ..., features] to [n, features], by name in reports
REDUCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "the mean of ": lambda x: x.mean(tuple(range(1, x.ndim - 1))),
    "the sum of ": lambda x: x.sum(tuple(range(1, x.ndim - 1))),
    "the first token of ": lambda x: x[:, 0],
    "the last token of ": lambda x: x[:, -1],
}


def list_reduced(array: np.ndarray, shape: tuple[int, ...]) -> list[tuple[str, np.ndarray]]:
    """Return the forms of an array that have a shape, with their names: reduced, transposed, or unchanged.

    An array may also be broadcast to the shape; [n, features] is repeated over the axes in between.
    """
    if array.shape == shape:
        return [("", array)]
    if array.ndim < 2 or len(array) != shape[0]:
        return []
    if len(shape) == 2 < array.ndim:
        if array[0].size == shape[1]:  # flattened, or a single token: all reductions are equal
            return [("", array.reshape(shape))]
        fitting = [array] if array.shape[-1] == shape[1] else []
        if not fitting and array.shape[1] == shape[1]:
            fitting = [np.moveaxis(array, 1, -1)]
        reduced = [(name, reduce(x)) for x in fitting for name, reduce in REDUCTIONS.items()]
        return [(name, x) for name, x in reduced if x.shape == shape]
    if array.ndim == 3 and (swapped := array.swapaxes(1, 2)).shape == shape:
        return [("the transpose of ", swapped)]
    if array.ndim == 2 < len(shape):
        array = array.reshape(len(array), *(1,) * (len(shape) - 2), -1)
    try:
        return [("", np.broadcast_to(array, shape))]
    except ValueError:
        return []
