"""Search for the max or mean pooling of windows between two layers. Ceil mode counts as padding at the end."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from common.diagnose.rounding import is_close

SIZES, STRIDES = (2, 3, 4), (1, 2, 3, 4)
TRIED_CHANNELS = 2  # channels of the first example, which a pooling must reproduce before all examples are compared


@dataclass(frozen=True)
class WindowPooling:
    """Pooling of an array [n, ..., channels] along all axes but the first and the last.

    Attributes:
        kind: "max" or "mean".
        size: Length of the window along each axis.
        stride: Step of the window along each axis.
        padding: Number of elements that are added at the start and at the end of each axis.
        counts_padding: Whether added zeros count, for a maximum as for a mean.
    """

    kind: str
    size: int
    stride: int
    padding: tuple[int, int]
    counts_padding: bool

    def __str__(self) -> str:
        padding = f", padding {self.padding[0]} and {self.padding[1]}" if any(self.padding) else ""
        zeros = f" with zeros that {'count' if self.counts_padding else 'do not count'}" if padding else ""
        return f"the {self.kind} of windows of {self.size}, stride {self.stride}{padding}{zeros}"

    def compute(self, x: np.ndarray) -> np.ndarray:
        """Pool x [n, ..., channels]."""
        axes = tuple(range(1, x.ndim - 1))
        widths = [(0, 0), *(self.padding for _ in axes), (0, 0)]
        missing = 0.0 if self.counts_padding else np.nan
        padded = np.pad(x, widths, constant_values=missing) if any(self.padding) else x
        windows = np.lib.stride_tricks.sliding_window_view(padded, (self.size,) * len(axes), axes)
        strided = windows[(slice(None), *(slice(None, None, self.stride) for _ in axes))]
        window_axes = tuple(range(x.ndim, x.ndim + len(axes)))
        with np.errstate(invalid="ignore"):
            if self.kind == "max":
                return np.asarray(np.fmax.reduce(strided.reshape(*strided.shape[: x.ndim], -1), -1))
            return np.asarray(np.nanmean(strided, window_axes))


def find_window_pooling(x: np.ndarray, result: np.ndarray) -> str | None:
    """Return the pooling that computes the result from x, possibly after ReLU, or None.

    Args:
        x: Features [n, ..., channels] or [n, channels, ...].
        result: Pooled features in the same layout.
    """
    if x.ndim < 3 or x.ndim != result.ndim or len(x) != len(result) or (x.shape == result.shape and not result.any()):
        return None
    for channel_axis in (x.ndim - 1, 1):
        if x.shape[channel_axis] != result.shape[channel_axis]:
            continue
        moved, pooled = (np.moveaxis(array, channel_axis, -1) for array in (x, result))
        for pooling in _list_poolings(moved.shape[1:-1], pooled.shape[1:-1]):
            for activation in ("", "relu, and then "):
                activated = np.maximum(moved, 0) if activation else moved
                tried = pooling.compute(activated[:1, ..., :TRIED_CHANNELS])
                if is_close(tried, pooled[:1, ..., :TRIED_CHANNELS]) and is_close(pooling.compute(activated), pooled):
                    return f"{activation}{pooling}"
    return None


def _list_poolings(sizes: tuple[int, ...], pooled_sizes: tuple[int, ...]) -> Iterator[WindowPooling]:
    """Yield the poolings that turn axes of the lengths `sizes` into axes of the lengths `pooled_sizes`.

    The stride that is the size comes first, because any stride gives a single window. For each size, stride and kind,
    the one without padding comes first.
    """
    strides = ((size, stride) for size in SIZES for stride in sorted(STRIDES, key=lambda stride: stride != size))
    for (size, stride), kind in product(strides, ("max", "mean")):
        for before, after in product(range((size + 1) // 2 + 1), range(size)):  # ceil mode needs up to size - 1
            is_fitting = all(
                (length + before + after - size) >= 0 and (length + before + after - size) // stride + 1 == pooled
                for length, pooled in zip(sizes, pooled_sizes, strict=True)
            )
            if is_fitting and stride <= size:
                for counts_padding in (False, True) if before or after else (True,):
                    yield WindowPooling(kind, size, stride, (before, after), counts_padding)
