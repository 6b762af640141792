"""Linear layers and convolutions that multiply in a lower precision than the reference.

A and B are the two runs of a diagnosis. The layer of A is the reference, and the layer of B is compared with it.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from common.diagnose.rounding import is_close
from common.map.array_differences import compute_norm

STORED_BITS = {"tf32": 10, "bfloat16": 7, "float16": 10}  # stored bits of the mantissa, by type
LARGEST_FLOAT16 = 65504.0  # TF32 and bfloat16 have the range of float32
SMALLEST_NORMAL_FLOAT16, FLOAT16_STEP = 2.0**-14, 2.0**-24  # smaller numbers are multiples of the step
UNEXPLAINED_SHARE = 0.1  # share of a difference that may remain unexplained, since float32 sums may be in another order
FLOAT32_ERROR = 1e-5  # relative: an upper bound of float32's rounding in one product

Multiply = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Product:
    """Operands of a linear layer or a convolution.

    Attributes:
        x: Input of the layer.
        weight: Weight in PyTorch's layout.
        bias: Bias, or zeros.
        stride: Stride of a convolution.
    """

    x: np.ndarray
    weight: np.ndarray
    bias: np.ndarray
    stride: int = 1


def round_to_type(x: np.ndarray, name: str) -> np.ndarray:
    """Round to the nearest numbers of a type, ties to even."""
    bits = STORED_BITS[name]
    mantissa, exponent = np.frexp(x)
    nearest = np.ldexp(np.rint(np.ldexp(mantissa, bits + 1)), exponent - bits - 1)
    if name == "float16":
        is_small = np.abs(x) < SMALLEST_NORMAL_FLOAT16
        nearest = np.where(is_small, np.rint(np.where(is_small, x, 0) / FLOAT16_STEP) * FLOAT16_STEP, nearest)
        nearest = np.where(np.abs(nearest) > LARGEST_FLOAT16, np.copysign(np.inf, x), nearest)
    return np.asarray(nearest)


def find_product_type(product: Product, a: np.ndarray, b: np.ndarray) -> str | None:
    """Return the type in which B multiplied, or None if no type explains the difference between the outputs.

    Args:
        product: The operands, which are equal on both sides.
        a: Output of A's layer, at full precision.
        b: Output of B's layer.
    """
    multiply = _find_multiplication(product, a)
    if multiply is None:
        return None
    difference = compute_norm(b - a)
    errors = {
        name: min(compute_norm(output - b) for output in _multiply_rounded(multiply, product, name, b))
        for name in STORED_BITS
    }
    name = min(errors, key=errors.__getitem__)
    if errors[name] <= UNEXPLAINED_SHARE * difference:
        return name
    is_float32 = np.array_equal(b, b.astype(np.float32)) and difference <= FLOAT32_ERROR * compute_norm(a)
    return "float32" if is_float32 else None


def _multiply_rounded(multiply: Multiply, product: Product, name: str, output: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the outputs that a product of operands of a type may have.

    TF32 rounds the operands only. The other types also round the output, if all numbers of B's `output` are of the
    type.
    """
    x, weight, bias = round_to_type(product.x, name), round_to_type(product.weight, name), product.bias
    if name == "tf32" or not np.array_equal(round_to_type(output, name), output):
        yield multiply(x, weight, bias)
        return
    bias = round_to_type(bias, name)
    yield round_to_type(multiply(x, weight, bias), name)
    without_bias = round_to_type(multiply(x, weight, np.zeros_like(bias)), name)
    bias_only = multiply(np.zeros_like(x), weight, bias)
    yield round_to_type(without_bias + bias_only, name)  # if the bias is added in a second operation


def _find_multiplication(product: Product, output: np.ndarray) -> Multiply | None:
    """Return the function of x, weight and bias that computes a layer's output: one of three, or None."""

    def linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
        return np.asarray(x @ weight.T + bias)

    def convolve_channels_first(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
        return _convolve(x, weight, product.stride, output.shape[2:]) + bias[:, None, None]

    def convolve_channels_last(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
        convolved = _convolve(np.moveaxis(x, -1, 1), weight, product.stride, output.shape[1:-1])
        return np.asarray(np.moveaxis(convolved, 1, -1) + bias)

    candidates: dict[int, list[Multiply]] = {2: [linear], 4: [convolve_channels_first, convolve_channels_last]}
    for multiply in candidates.get(product.weight.ndim, []):
        with suppress(ValueError):  # the shapes do not fit
            if is_close(multiply(product.x, product.weight, product.bias), output):
                return multiply
    return None


def _convolve(x: np.ndarray, weight: np.ndarray, stride: int, size: tuple[int, ...]) -> np.ndarray:
    """Convolve x [n, channels, height, width] in one group, with equal padding at both ends of an axis.

    Args:
        x: Input.
        weight: Weight [outputs, channels, height, width].
        stride: Stride in both directions.
        size: Height and width of the output.
    """
    window = weight.shape[2:]
    missing_pixels = [  # missing rows and columns of the input for this size of the output
        (outputs - 1) * stride + width - inputs
        for outputs, width, inputs in zip(size, window, x.shape[2:], strict=True)
    ]
    padding = [max(0, math.ceil(count / 2)) for count in missing_pixels]  # at each end
    padded = np.pad(x, [(0, 0), (0, 0), *((count, count) for count in padding)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, window, (2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwij,ocij->nohw", windows[:, :, : size[0], : size[1]], weight)
