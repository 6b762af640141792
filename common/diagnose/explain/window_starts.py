"""The place of a convolution's first window: paddings of PyTorch and Keras may mean the same.

A is the reference run of a diagnosis, and B the run that is compared with it. PyTorch counts the elements that it adds
to both ends of an axis. Keras's "same" depends on the size of the input, and may add more at the end than at the start.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from common.diagnose.layer_match import LayerMatch

CONVOLUTION, TRANSPOSED = "convolution", "transposed convolution"
ZEROS = "zeros"  # the default of PyTorch's padding_mode
Numbers = tuple[int, ...]  # a number for each axis of a window
Settings = Mapping[str, object]


def have_same_windows(layer: LayerMatch, x: np.ndarray, weight: np.ndarray | None) -> bool:
    """Check whether the paddings of two convolutions whose outputs have the same shape place their windows equally.

    Return False if the settings do not say it.

    Args:
        layer: The pair of convolutions.
        x: Input of both [n, ...], in any layout.
        weight: Kernel, in PyTorch's layout: [outputs, inputs, ...], or [inputs, outputs, ...] of a transposed one.
    """
    if layer.kind not in (CONVOLUTION, TRANSPOSED) or weight is None or x.ndim != weight.ndim or x.ndim < 3:
        return False
    both = layer.settings_a, layer.settings_b
    if any(settings.get("padding_mode", ZEROS) != ZEROS for settings in both):
        return False
    groups = read_numbers(both[0].get("groups", 1), 1) or (1,)
    channels = weight.shape[0] if layer.kind == TRANSPOSED else weight.shape[1] * groups[0]
    layouts = [sizes for axis, sizes in ((-1, x.shape[1:-1]), (1, x.shape[2:])) if x.shape[axis] == channels]
    are_equal_strides = all(
        read_numbers(both[0].get(name, 1), x.ndim - 2) == read_numbers(both[1].get(name, 1), x.ndim - 2)
        for name in ("stride", "dilation")
    )
    starts = [
        [find_starts(settings, sizes, weight.shape[2:], layer.kind == TRANSPOSED) for settings in both]
        for sizes in layouts
    ]
    return are_equal_strides and bool(starts) and all(a is not None and a == b for a, b in starts)


def find_starts(settings: Settings, sizes: Sequence[int], window: Sequence[int], is_transposed: bool) -> Numbers | None:
    """Return how many elements are added before an input, or cut off before a transposed output, along each axis.

    Args:
        settings: Settings of the layer.
        sizes: Sizes of the input's axes.
        window: Sizes of the kernel's axes.
        is_transposed: Whether the convolution is transposed.

    Returns:
        The numbers; None if the settings do not say it.
    """
    strides, dilations = (read_numbers(settings.get(name, 1), len(window)) for name in ("stride", "dilation"))
    padding = settings.get("padding")
    if strides is None or dilations is None or 0 in strides:
        return None
    extents = [dilation * (size - 1) + 1 for size, dilation in zip(window, dilations, strict=True)]
    if padding == "valid":
        return (0,) * len(window)
    if padding == "causal" and not is_transposed:
        return tuple(extent - 1 for extent in extents)
    if padding != "same":
        return read_numbers(padding, len(window))
    # The size of the input does not matter to a transposed convolution: its output is the input's size times the stride
    return tuple(
        max(0, extent - stride if is_transposed else (math.ceil(size / stride) - 1) * stride + extent - size) // 2
        for size, stride, extent in zip(sizes, strides, extents, strict=True)
    )


def read_numbers(value: object, count: int) -> Numbers | None:
    """Return a number for each axis of a window; None if a setting is something else."""
    values = np.atleast_1d(np.asarray(value, object))
    if values.shape not in ((1,), (count,)) or not all(type(number) is int and number >= 0 for number in values):
        return None
    return tuple(np.broadcast_to(values, count).tolist())
