"""Products of rounded operands."""

import numpy as np
import pytest

from common.diagnose.explain.low_precision import STORED_BITS, Product, find_product_type, round_to_type

STREAM = np.random.default_rng(0)
X, WEIGHT, BIAS = (STREAM.standard_normal(shape) for shape in ((6, 5, 16), (8, 16), 8))
LINEAR = Product(X, WEIGHT, BIAS)
EXACT = X @ WEIGHT.T + BIAS


def test_rounding_agrees_with_numpy() -> None:
    x = STREAM.standard_normal(1000) * 10.0 ** STREAM.uniform(-9, 6, 1000)
    with np.errstate(over="ignore"):
        assert np.array_equal(round_to_type(x, "float16"), x.astype(np.float16))
    assert round_to_type(np.array([1 + 2**-8, 1 + 3 * 2**-8, -3.0]), "bfloat16").tolist() == [1.0, 1 + 2**-6, -3.0]
    assert round_to_type(np.array([1 + 2**-10, 1 + 2**-12]), "tf32").tolist() == [1 + 2**-10, 1.0]


def multiply_rounded(name: str) -> np.ndarray:
    return round_to_type(X, name) @ round_to_type(WEIGHT, name).T + BIAS


@pytest.mark.parametrize("name", STORED_BITS)
def test_a_linear_layer_of_rounded_operands(name: str) -> None:
    output = multiply_rounded(name)
    expected = "tf32" if name == "float16" else name  # their mantissas have the same length
    assert find_product_type(LINEAR, EXACT, output) == expected
    in_float32 = output.astype(np.float32).astype(np.float64)
    assert find_product_type(LINEAR, EXACT, in_float32) == expected, "sums in float32"


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_the_output_may_be_rounded_too(name: str) -> None:
    bias = round_to_type(BIAS, name)
    product = round_to_type(X, name) @ round_to_type(WEIGHT, name).T
    assert find_product_type(LINEAR, EXACT, round_to_type(product + bias, name)) == name
    assert find_product_type(LINEAR, EXACT, round_to_type(round_to_type(product, name) + bias, name)) == name


def test_float32_and_differences_that_no_type_explains() -> None:
    narrow = X.astype(np.float32) @ WEIGHT.astype(np.float32).T + BIAS.astype(np.float32)
    assert find_product_type(LINEAR, EXACT, narrow.astype(np.float64)) == "float32"
    assert find_product_type(LINEAR, EXACT, EXACT * (1 + 1e-3)) is None
    assert find_product_type(LINEAR, np.tanh(EXACT), multiply_rounded("tf32")) is None, "A does not compute a product"


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("stride", "padding"), [(1, 1), (2, 1), (2, 0), (1, 0)])
def test_a_convolution_of_rounded_operands(channels_last: bool, stride: int, padding: int) -> None:
    x, weight = STREAM.standard_normal((2, 3, 8, 8)), STREAM.standard_normal((4, 3, 3, 3))

    def convolve(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        padded = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
        size = (8 + 2 * padding - 3) // stride + 1
        out = np.empty((2, 4, size, size))
        for i in range(size):
            for j in range(size):
                window = padded[:, :, stride * i : stride * i + 3, stride * j : stride * j + 3]
                out[:, :, i, j] = np.tensordot(window, weight, ([1, 2, 3], [1, 2, 3])) + BIAS[:4]
        return out

    arrays = [x, convolve(x, weight), convolve(round_to_type(x, "bfloat16"), round_to_type(weight, "bfloat16"))]
    if channels_last:
        arrays = [np.moveaxis(array, 1, -1) for array in arrays]
    assert find_product_type(Product(arrays[0], weight, BIAS[:4], stride), arrays[1], arrays[2]) == "bfloat16"
