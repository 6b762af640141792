"""Layouts of arrays: A's array in the layout of its counterpart in B.

A is the reference run of a diagnosis, and B the run that is compared with it. A layout is the order of an array's axes:
PyTorch has channels in the second axis, Keras in the last.
"""

import math
from collections.abc import Sequence

import numpy as np

from common.diagnose.layer_match import LayerMatch
from common.diagnose.rounding import is_close
from common.diagnose.zero_borders import fit_borders
from common.map.array_differences import move_channels_last, relative_difference

LAYOUT_TOLERANCE = 1e-3  # largest relative difference of two arrays that are in the same layout for certain


def convert_layout(
    array: np.ndarray | None, target: np.ndarray | None, unflattened_shape: tuple[int, ...] | None = None
) -> np.ndarray | None:
    """Return A's array in the layout of B's array, or None if no layout fits.

    Channels may be the second or the last axis. The axis of attention heads may be before or after the axis of tokens.
    Tokens may have an axis of their own, before or after the axis of examples, or the two may be one axis. One side may
    pad before a layer, and the other within it, so the result has as many zeros at its ends as B's array. If several
    layouts fit, the result is the one closest to B's array.

    Args:
        array: A's array.
        target: B's array.
        unflattened_shape: The axes that A's model merged to the last one, such as all of an example. None if both
            models flatten in the same order of axes, or do not flatten.
    """
    if array is None or target is None:
        return None
    if array.size != target.size:
        padded = [fit_borders(candidate, target) for candidate in _list_layouts(array)]
        return _choose_closest([candidate for candidate in padded if candidate is not None], target)
    if array.shape[:1] != target.shape[:1]:
        shares_axis = _merge_first_axes(array.shape) == target.shape or array.shape == _merge_first_axes(target.shape)
        if shares_axis:
            return array.reshape(target.shape)
        is_swapped = array.ndim >= 3 and array.swapaxes(0, 1).shape == target.shape  # [tokens, n, features]
        return array.swapaxes(0, 1) if is_swapped else None
    if unflattened_shape is not None and array.ndim > 1 and array.shape[-1] == int(np.prod(unflattened_shape)):
        unflattened, first = array.reshape(*array.shape[:-1], *unflattened_shape), array.ndim - 1
        channels_moved = (np.moveaxis(unflattened, first, -1), np.moveaxis(unflattened, -1, first))
        candidates = [candidate.reshape(array.shape) for candidate in channels_moved]
        if len({*unflattened_shape}) == 1:
            candidates.append(array)  # with equal sizes, the shape does not show whether B moved the channels
    else:
        candidates = _list_layouts(array)
    fitting = [candidate for candidate in candidates if candidate.shape == target.shape]
    if not fitting and array.ndim != target.ndim:
        fitting = [array.reshape(target.shape)]
    return _choose_closest(fitting, target)


def convert_channels(
    array: np.ndarray | None, target: np.ndarray | None, other: np.ndarray | None, other_target: np.ndarray | None
) -> np.ndarray | None:
    """Convert an array whose axis of channels only another array of the layer shows. Return None if it shows none.

    Args:
        array: The input or the output of A's layer.
        target: The same array of B's layer.
        other: The output of A's layer if `array` is its input, or else its input.
        other_target: The same array of B's layer.
    """
    arrays = [x for x in (array, target, other, other_target) if x is not None and x.ndim > 2]
    if len(arrays) < 4 or len({x.ndim for x in arrays}) > 1:
        return None
    layouts, other_layouts = _list_layouts(arrays[0])[:3], _list_layouts(arrays[2])[:3]
    fitting = [x for x, moved in zip(layouts, other_layouts, strict=True) if moved.shape == arrays[3].shape]
    return fitting[0] if len(fitting) == 1 and fitting[0].shape == arrays[1].shape else None


def move_equal_axes(
    layer: LayerMatch, converted: np.ndarray | None, array: np.ndarray | None, target: np.ndarray | None
) -> np.ndarray | None:
    """Return A's array in the layout of B's framework if all its axes but the first have one length.

    The shapes then do not show the axis of the channels, and the numbers only show it if no earlier layer differs.

    Args:
        layer: The layer.
        converted: A's array in the layout that is closest to B's array.
        array: A's array.
        target: B's array.
    """
    if layer.channels_first is None or converted is None or array is None or target is None:
        return converted
    if array.shape != target.shape or array.ndim < 3 or len({*array.shape[1:]}) > 1:
        return converted
    is_first_in_a, is_first_in_b = layer.channels_first
    if is_first_in_a == is_first_in_b or is_close(converted, target, LAYOUT_TOLERANCE):
        return converted
    return move_channels_last(array) if is_first_in_a else np.moveaxis(array, -1, 1)


def _list_layouts(array: np.ndarray) -> list[np.ndarray]:
    """Return an array unchanged, and with its channels or its tokens in other axes."""
    if array.ndim < 3:
        return [array]
    return [array, move_channels_last(array), np.moveaxis(array, -1, 1), array.swapaxes(0, 1)]


def _choose_closest(candidates: Sequence[np.ndarray], target: np.ndarray) -> np.ndarray | None:
    if len(candidates) == 1:
        return candidates[0]
    return min(candidates, key=lambda candidate: relative_difference(candidate, target), default=None)


def _merge_first_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (math.prod(shape[:2]), *shape[2:])
