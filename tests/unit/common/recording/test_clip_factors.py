"""Tests of the factors that stand for gradients before clipping."""

import numpy as np
import pytest

from common.recording.clip_factors import find_factor, restore_gradients

GRADIENT = np.random.default_rng(0).normal(size=(300, 200)).astype(np.float32)


@pytest.mark.parametrize("factor", [0.3, 1e-6, 2.5])
def test_a_gradient_is_restored_up_to_a_rounding(factor: float) -> None:
    clipped = GRADIENT * np.float32(factor)
    clip_factor = find_factor(GRADIENT, clipped)
    assert clip_factor is not None
    assert clip_factor == pytest.approx(factor, rel=1e-6)
    restored = restore_gradients({"w": clipped}, {"w": clip_factor, "missing": 0.5})
    np.testing.assert_allclose(restored["w"], GRADIENT, rtol=1e-6)
    assert restored.keys() == {"w"}


def zero_first(clipped: np.ndarray) -> np.ndarray:
    clipped[0, 0] = 0
    return clipped


@pytest.mark.parametrize(
    "change",
    [
        zero_first,
        lambda clipped: np.clip(clipped, -1, 1),
        lambda clipped: -clipped,
        lambda clipped: clipped * np.nan,
        lambda clipped: np.zeros_like(clipped),
        lambda clipped: clipped[:10],
        lambda clipped: clipped.astype(np.float16),
    ],
    ids=["one element", "value", "sign", "nan", "zero", "shape", "rounding"],
)
def test_no_factor_explains_another_change(change: object) -> None:
    assert find_factor(GRADIENT, change(GRADIENT * np.float32(0.5))) is None  # type: ignore[operator]


def test_errors_up_to_a_share_of_the_largest_element_are_allowed() -> None:
    clipped = GRADIENT * np.float32(0.5) + np.float32(1e-6) * np.abs(GRADIENT).max()
    assert find_factor(GRADIENT, clipped) is None
    assert find_factor(GRADIENT, clipped, noise_roundings=100) == pytest.approx(0.5, rel=1e-4)
    assert find_factor(np.zeros(3), np.zeros(3)) is None


def test_float64_has_its_own_rounding() -> None:
    gradient = GRADIENT.astype(np.float64)
    gradient[0] /= 3
    assert find_factor(gradient, gradient * 0.3) == pytest.approx(0.3, rel=1e-13, abs=0)
    through_float32 = gradient.astype(np.float32).astype(np.float64)
    assert find_factor(gradient, through_float32) is None
    assert find_factor(gradient, through_float32, noise_roundings=100) is None


def test_numbers_with_few_digits_have_no_factor() -> None:
    clipped = GRADIENT * np.float32(1e-42)
    assert clipped.any()
    assert find_factor(GRADIENT, clipped) is None
