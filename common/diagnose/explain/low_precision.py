"""In which precision a linear layer or a convolution multiplies."""

from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np

from common.diagnose.rounding import close

# By type: the bits of its mantissa that are stored, and its largest number. TF32 has the range of float32.
TYPES = {"tf32": (10, np.inf), "bfloat16": (7, np.inf), "float16": (10, 65504.0)}
SMALLEST = 2.0**-24  # float16's numbers below 2^-14 are multiples of it
EXPLAINED = 0.1  # of a difference: what the order in which float32 sums may leave
FLOAT32 = 1e-5  # relative: more than float32's rounding makes of one product
Multiply = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def rounded(x: np.ndarray, name: str) -> np.ndarray:
    """To the nearest numbers of a type, ties to even."""
    bits, largest = TYPES[name]
    mantissa, exponent = np.frexp(x)
    nearest = np.ldexp(np.rint(np.ldexp(mantissa, bits + 1)), exponent - bits - 1)
    if name == "float16":
        nearest = np.where(np.abs(x) < 2.0**-14, np.rint(x / SMALLEST) * SMALLEST, nearest)
        nearest = np.where(np.abs(nearest) > largest, np.copysign(np.inf, x), nearest)
    return np.asarray(nearest)


def precision_of(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, stride: int, ours: np.ndarray, theirs: np.ndarray
) -> str | None:
    """The type in which `theirs` was computed where `ours` was not; None where no type explains it.

    x: what a linear layer or a convolution received. weight, bias: in PyTorch's layout. stride: of a convolution.
    """
    multiply = _product(x, weight, bias, stride, ours)
    if multiply is None:
        return None
    apart = float(np.linalg.norm(theirs - ours))
    off = {
        name: min(float(np.linalg.norm(each - theirs)) for each in _computed(multiply, x, weight, bias, name, theirs))
        for name in TYPES
    }
    name = min(off, key=lambda each: off[each])
    if off[name] <= EXPLAINED * apart:
        return name
    in_float32 = np.array_equal(theirs, theirs.astype(np.float32)) and apart <= FLOAT32 * float(np.linalg.norm(ours))
    return "float32" if in_float32 else None


def _computed(
    multiply: Multiply, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, name: str, seen: np.ndarray
) -> Iterator[np.ndarray]:
    """What operands of a type give. TF32 is of operands alone; a layer in another type may also return that."""
    x, weight = rounded(x, name), rounded(weight, name)
    if name == "tf32" or not np.array_equal(rounded(seen, name), seen):
        yield multiply(x, weight, bias)
        return
    bias = rounded(bias, name)
    yield rounded(multiply(x, weight, bias), name)
    product, added = multiply(x, weight, np.zeros_like(bias)), multiply(np.zeros_like(x), weight, bias)
    yield rounded(rounded(product, name) + added, name)  # where the bias is added apart


def _product(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, stride: int, returned: np.ndarray) -> Multiply | None:
    """The function that makes a layer's output of x, its weight and its bias, where it is one of these."""

    def linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
        return np.asarray(x @ weight.T + bias)

    def channels_first(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
        return _convolved(x, weight, stride, returned.shape[2:]) + bias[:, None, None]

    def channels_last(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
        moved = _convolved(np.moveaxis(x, -1, 1), weight, stride, returned.shape[1:-1])
        return np.asarray(np.moveaxis(moved, 1, -1) + bias)

    kinds: dict[int, list[Multiply]] = {2: [linear], 4: [channels_first, channels_last]}
    for multiply in kinds.get(weight.ndim, []):
        with suppress(ValueError):  # shapes that it does not take
            if close(multiply(x, weight, bias), returned):
                return multiply
    return None


def _convolved(x: np.ndarray, weight: np.ndarray, stride: int, size: tuple[int, ...]) -> np.ndarray:
    """A convolution of x [n, channels, height, width] in one group, padded alike on both sides. size: of the output."""
    window = weight.shape[2:]
    missing = [(n - 1) * stride + k - m for n, k, m in zip(size, window, x.shape[2:], strict=True)]
    padded = np.pad(x, [(0, 0), (0, 0), *((max(0, -(-each // 2)),) * 2 for each in missing)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, window, (2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwij,ocij->nohw", windows[:, :, : size[0], : size[1]], weight)
