"""Differences between arrays and between settings of layers of PyTorch and of Keras.

PyTorch has the channels of images and sequences in the second axis, Keras in the last. Models often flatten all axes
but the first before a linear layer, so that the order of the features depends on the axis of the channels.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

LayerSettings = Mapping[str, object]
Shape = tuple[int, ...]
LARGE = 1e3  # elements this many times larger than the small ones are compared one by one
SMALL_SHARE = 0.1  # the share of the elements other than zero that count as small
BLOCK_SIZE = 1 << 15  # elements: 256 KiB of float64
# If an array has large elements, differences of its small ones are relative to at least this norm, because the small
# elements may be rounding errors.
NORM_BESIDE_LARGE = 1e-6


def relative_difference(a: np.ndarray, b: np.ndarray, min_norm: float = 0, equal_nan: bool = False) -> float:
    """Return |a - b| relative to the larger of their norms, or to `min_norm` if that is larger.

    Elements that are far larger than the others, such as -1e9 in masked logits, are compared one by one, because their
    norm would hide the differences of the others.

    Args:
        a: An array.
        b: An array of the same shape.
        min_norm: The smallest norm to which the difference is relative.
        equal_nan: Whether NaN equals NaN, such as in a buffer. Outputs and gradients of NaN prove nothing.

    Returns:
        The relative difference. Infinity if one array has an infinite element that the other does not have, or if one
        has NaN, unless `equal_nan` and both have it there.
    """
    a, b = (np.asarray(array, np.float64).ravel() for array in (a, b))
    sums = _sum_squares(a, b)
    if not np.isfinite(sums).all() and not (np.isfinite(a).all() and np.isfinite(b).all()):
        finite = np.isfinite(a) & np.isfinite(b)
        if not np.array_equal(a[~finite], b[~finite], equal_nan=equal_nan):
            return np.inf
        a, b = a[finite], b[finite]
        sums = _sum_squares(a, b)
    a_square, b_square, gap_square, largest_element = sums
    if not largest_element:
        return 0
    large = _find_large(a, b, largest_element)
    if large is None:
        norm = max(math.sqrt(a_square), math.sqrt(b_square), min_norm)
        return math.sqrt(gap_square) / norm if norm else 0  # a norm underflows to 0
    min_norm = max(min_norm, NORM_BESIDE_LARGE)
    norm = max(compute_norm(a[~large]), compute_norm(b[~large]), min_norm)
    gaps = np.abs(a - b)
    largest = float((gaps[large] / np.maximum(_compute_magnitudes(a[large], b[large]), min_norm)).max())
    return max(compute_norm(gaps[~large]) / norm, largest)


def _sum_squares(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float, float]:
    """Return sum(a^2), sum(b^2), sum((b - a)^2) and the largest magnitude of two vectors."""
    a_square = b_square = gap_square = largest = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for x, y in _iterate_blocks(a, b):
            gap = x - y
            a_square += float(np.einsum("i,i->", x, x))
            b_square += float(np.einsum("i,i->", y, y))
            gap_square += float(np.einsum("i,i->", gap, gap))
            largest = max(largest, x.max(), y.max(), -x.min(), -y.min())
    return a_square, b_square, gap_square, largest


def _iterate_blocks(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the elements of two vectors in blocks that fit into the cache: new memory of their size takes longer."""
    for start in range(0, len(a), BLOCK_SIZE):
        yield a[start : start + BLOCK_SIZE], b[start : start + BLOCK_SIZE]


def _compute_magnitudes(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the larger magnitude of each pair of elements."""
    return np.maximum(np.abs(a), np.abs(b))


def _find_large(a: np.ndarray, b: np.ndarray, largest: float) -> np.ndarray | None:
    """Return a mask of the pairs of elements that are far larger than the small ones, or None if there are none."""
    count = small_count = 0
    for x, y in _iterate_blocks(a, b):
        magnitudes = _compute_magnitudes(x, y)
        nonzero_count = int(np.count_nonzero(magnitudes))
        count += nonzero_count
        small_count += int(np.count_nonzero(magnitudes < largest / LARGE)) - (len(magnitudes) - nonzero_count)
    if small_count <= SMALL_SHARE * (count - 1):  # counting is faster than the quantile
        return None
    magnitudes = _compute_magnitudes(a, b)
    # A low quantile instead of the median, because most elements may be masked.
    large = np.asarray(magnitudes > LARGE * np.quantile(magnitudes[magnitudes > 0], SMALL_SHARE))
    return large if large.any() else None


def compute_norm(array: npt.ArrayLike) -> float:
    """Return the norm in one thread. The threads of NumPy's norm wait in loops afterwards, which takes a core."""
    vector = np.asarray(array, np.float64).ravel()
    return math.sqrt(np.einsum("i,i->", vector, vector))


def move_channels_last(array: np.ndarray) -> np.ndarray:
    """Move the second axis to the end."""
    return np.moveaxis(array, 1, -1)


def smallest_difference(
    torch_array: np.ndarray | None, keras_array: np.ndarray | None, unflattened_shape: Shape | None
) -> float | None:
    """Return the relative difference of two arrays in the layout in which it is smallest.

    Args:
        torch_array: An array of PyTorch.
        keras_array: Its counterpart in Keras, which may have its channels last.
        unflattened_shape: The shape of PyTorch's examples before the model flattened them, if Keras's examples had
            their channels last then; otherwise None.

    Returns:
        The relative difference; None if the arrays cannot be compared.
    """
    if torch_array is None or keras_array is None:
        return None
    if torch_array.size != keras_array.size or torch_array.shape[:1] != keras_array.shape[:1]:
        return None
    candidates = [torch_array, move_channels_last(torch_array)] if torch_array.ndim >= 3 else [torch_array]
    candidates = [candidate for candidate in candidates if candidate.shape == keras_array.shape]
    if unflattened_shape is not None and torch_array.shape[-1] == int(np.prod(unflattened_shape)):
        candidates = [move_channels_last(torch_array.reshape(-1, *unflattened_shape)).reshape(torch_array.shape)]
    if not candidates and keras_array.ndim != torch_array.ndim:  # one side splits an axis, such as into heads
        candidates = [torch_array.reshape(keras_array.shape)]
    return min((relative_difference(candidate, keras_array) for candidate in candidates), default=None)


def list_different_settings(a: LayerSettings, b: LayerSettings) -> list[tuple[str, object, object]]:
    """Return the name and both values of the settings that two layers have and that differ.

    The momentum is left out, because it changes no output.
    """
    shared = [(name, value, b[name]) for name, value in a.items() if name in b and name != "momentum"]
    return [(name, x, y) for name, x, y in shared if x != y and normalize_setting(x) != normalize_setting(y)]


def has_strides(settings: LayerSettings) -> bool:
    """Check whether the settings of a layer have a stride greater than 1 in any axis."""
    return max(_to_numbers(settings.get("stride"))) > 1


def normalize_setting(setting: object) -> str | tuple[float, ...]:
    """Return a text as it is, and numbers as a tuple: one number if all are equal, such as the strides of all axes."""
    if isinstance(setting, str):
        return setting
    numbers = tuple(_to_numbers(setting))
    return numbers[:1] if len(set(numbers)) == 1 else numbers


def _to_numbers(value: object) -> list[float]:
    """Convert a setting to numbers, such as a stride of one or several axes. None is 0, and a text has no numbers."""
    if isinstance(value, str):
        return []
    return [float(number) for number in np.ravel(np.asarray(0 if value is None else value, np.float64))]
