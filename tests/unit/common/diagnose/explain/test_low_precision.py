"""Products of operands that are rounded."""

import numpy as np
import pytest

from common.diagnose.explain.low_precision import TYPES, precision_of, rounded

STREAM = np.random.default_rng(0)
X, WEIGHT, BIAS = (STREAM.standard_normal(shape) for shape in ((6, 5, 16), (8, 16), 8))


def test_rounding_is_that_of_numpy() -> None:
    x = STREAM.standard_normal(1000) * 10.0 ** STREAM.uniform(-9, 6, 1000)
    with np.errstate(over="ignore"):
        assert np.array_equal(rounded(x, "float16"), x.astype(np.float16))
    assert rounded(np.array([1 + 2**-8, 1 + 3 * 2**-8, -3.0]), "bfloat16").tolist() == [1.0, 1 + 2**-6, -3.0]
    assert rounded(np.array([1 + 2**-10, 1 + 2**-12]), "tf32").tolist() == [1 + 2**-10, 1.0]


def linear(name: str) -> np.ndarray:
    return rounded(X, name) @ rounded(WEIGHT, name).T + BIAS


@pytest.mark.parametrize("name", TYPES)
def test_a_linear_layer_of_rounded_operands(name: str) -> None:
    ours = X @ WEIGHT.T + BIAS
    seen = linear(name)
    expected = "tf32" if name == "float16" else name  # whose mantissa is as long
    assert precision_of(X, WEIGHT, BIAS, 1, ours, seen) == expected
    in_float32 = seen.astype(np.float32).astype(np.float64)
    assert precision_of(X, WEIGHT, BIAS, 1, ours, in_float32) == expected, "sums in float32"


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_outputs_of_that_type_too(name: str) -> None:
    ours, bias = X @ WEIGHT.T + BIAS, rounded(BIAS, name)
    product = rounded(X, name) @ rounded(WEIGHT, name).T
    assert precision_of(X, WEIGHT, BIAS, 1, ours, rounded(product + bias, name)) == name
    assert precision_of(X, WEIGHT, BIAS, 1, ours, rounded(rounded(product, name) + bias, name)) == name


def test_float32_and_what_no_precision_explains() -> None:
    ours = X @ WEIGHT.T + BIAS
    narrow = X.astype(np.float32) @ WEIGHT.astype(np.float32).T + BIAS.astype(np.float32)
    assert precision_of(X, WEIGHT, BIAS, 1, ours, narrow.astype(np.float64)) == "float32"
    assert precision_of(X, WEIGHT, BIAS, 1, ours, ours * (1 + 1e-3)) is None
    assert precision_of(X, WEIGHT, BIAS, 1, np.tanh(ours), linear("tf32")) is None, "not a product in A"


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("stride", "padding"), [(1, 1), (2, 1), (2, 0), (1, 0)])
def test_a_convolution_of_rounded_operands(channels_last: bool, stride: int, padding: int) -> None:
    x, weight = STREAM.standard_normal((2, 3, 8, 8)), STREAM.standard_normal((4, 3, 3, 3))

    def convolved(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        padded = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
        size = (8 + 2 * padding - 3) // stride + 1
        out = np.empty((2, 4, size, size))
        for i in range(size):
            for j in range(size):
                window = padded[:, :, stride * i : stride * i + 3, stride * j : stride * j + 3]
                out[:, :, i, j] = np.tensordot(window, weight, ([1, 2, 3], [1, 2, 3])) + BIAS[:4]
        return out

    arrays = [x, convolved(x, weight), convolved(rounded(x, "bfloat16"), rounded(weight, "bfloat16"))]
    if channels_last:
        arrays = [np.moveaxis(each, 1, -1) for each in arrays]
    assert precision_of(arrays[0], weight, BIAS[:4], stride, arrays[1], arrays[2]) == "bfloat16"
