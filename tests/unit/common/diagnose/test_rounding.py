"""Rounding errors: tolerances, noise, and the precision of an array."""

import numpy as np
import pytest

from common.diagnose.rounding import (
    NOISE_FACTOR,
    SMALLEST_TOLERANCE,
    find_common_precision,
    find_narrowest_type,
    is_close,
    measure_noise,
    perturb,
    rounding_tolerance,
)

FLOAT64 = np.random.default_rng(0).standard_normal((5, 7))
FLOAT32 = FLOAT64.astype(np.float32)
FLOAT16 = FLOAT32.astype(np.float16).astype(np.float32)
BFLOAT16 = (FLOAT32.view(np.uint32) & 0xFFFF0000).view(np.float32)


@pytest.mark.parametrize(
    ("array", "name"),
    [
        (FLOAT64, "float64"),
        (FLOAT32, "float32"),
        (FLOAT16, "float16"),
        (BFLOAT16, "bfloat16"),
        (FLOAT32 * 1e9, "float32"),
    ],
)
def test_the_narrowest_type_depends_on_the_values(array: np.ndarray, name: str) -> None:
    assert find_narrowest_type(array) == name
    with_nan = array.copy()
    with_nan[0, 0] = np.nan
    assert find_narrowest_type(with_nan) == name


def test_arrays_are_compared_in_the_precision_of_the_one_with_more_digits() -> None:
    assert find_common_precision(BFLOAT16, BFLOAT16) == "bfloat16"
    assert find_common_precision(BFLOAT16, FLOAT32) == find_common_precision(FLOAT32, FLOAT16) == "float32"
    assert find_common_precision(FLOAT32, FLOAT64) == "float64"


def test_an_explanation_needs_the_digits_of_the_array_with_fewer() -> None:
    assert is_close(FLOAT32, FLOAT64) and not is_close(FLOAT32 * (1 + 1e-4), FLOAT64)
    assert is_close(BFLOAT16, FLOAT32) and not is_close(BFLOAT16 * 1.1, FLOAT32)
    assert is_close(FLOAT64, FLOAT64 * (1 + 1e-12)) and not is_close(FLOAT64, FLOAT64 * (1 + 1e-7))
    assert not is_close(FLOAT32, FLOAT64, 1e-9)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64])
def test_arrays_without_fractions_are_compared(dtype: type) -> None:
    a: np.ndarray = np.array([0, 1, 1, 1]).astype(dtype)
    b: np.ndarray = np.array([1, 0, 1, 1]).astype(dtype)
    assert is_close(a, a) and not is_close(a, b)
    assert is_close(a, b, 1.0)  # the difference is sqrt(2), the norms are sqrt(3)


@pytest.mark.parametrize("precision", SMALLEST_TOLERANCE)
def test_the_tolerance_is_a_multiple_of_the_noise(precision: str) -> None:
    assert rounding_tolerance(0.0, precision) == SMALLEST_TOLERANCE[precision]
    assert rounding_tolerance(1.0, precision) == NOISE_FACTOR[precision]


def test_noise_is_the_effect_of_a_perturbation() -> None:
    perturbed = perturb(FLOAT32, 2.0**-23)
    assert perturbed.dtype == np.float32 and (perturbed != FLOAT32).all()
    assert 2.0**-24 < measure_noise(FLOAT32, perturbed) < 2.0**-22
    assert measure_noise(FLOAT32, None, default=3.0) == 3.0
    assert measure_noise(FLOAT32, np.full_like(FLOAT32, np.nan)) == 0.0, "an overflow does not measure rounding"


def test_an_overflow_is_close_to_nothing() -> None:
    assert not is_close(np.array([np.inf, 1.0]), np.array([2.0, 3.0]))
