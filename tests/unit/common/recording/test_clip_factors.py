"""Tests of the factors that stand for gradients before clipping."""

from collections.abc import Callable

import numpy as np
import pytest

from common.recording.clip_factors import find_decay, find_factor, restore_gradients
from common.recording.gradient_changes import GradientChanges, find_changes

WEIGHT = np.random.default_rng(1).normal(size=(300, 200)).astype(np.float32)
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


@pytest.mark.parametrize(("factor", "decay"), [(1.0, 1e-4), (0.3, 0.01), (1e-3, 10.0), (1.0, -0.1)])
def test_a_gradient_with_a_decay_is_restored(factor: float, decay: float) -> None:
    changed = GRADIENT * np.float32(factor) + np.float32(decay) * WEIGHT
    numbers = find_decay(GRADIENT, changed, WEIGHT)
    assert numbers is not None
    assert numbers == pytest.approx((factor, decay), rel=1e-4)
    restored = restore_gradients({"w": changed}, {"w": numbers[0]}, {"w": numbers[1]}, {"w": WEIGHT})["w"]
    noise = 1e-6 * max(1.0, abs(decay) / factor) * np.abs(WEIGHT).max()
    np.testing.assert_allclose(restored, GRADIENT, rtol=1e-6, atol=noise)


def test_a_decay_without_weights_cannot_be_restored() -> None:
    assert restore_gradients({"w": GRADIENT, "v": GRADIENT}, {}, {"w": 0.1}, {"v": WEIGHT}) == {}


def test_a_decay_of_a_gradient_of_zero_is_found() -> None:
    assert find_decay(np.zeros_like(WEIGHT), np.float32(0.01) * WEIGHT, WEIGHT) == pytest.approx((1.0, 0.01))


@pytest.mark.parametrize(
    "change",
    [
        lambda gradient: gradient + np.float32(0.01),
        lambda gradient: gradient + np.float32(0.01) * np.sign(WEIGHT),
        lambda gradient: (gradient + np.float32(0.01) * WEIGHT) * (WEIGHT > 0),
        lambda gradient: np.float32(0.01) * WEIGHT - gradient,
        lambda gradient: gradient * np.nan,
        lambda gradient: np.zeros_like(gradient),
        lambda gradient: gradient[:10],
    ],
    ids=["constant", "L1", "mask", "sign", "nan", "zero", "shape"],
)
def test_no_decay_explains_another_change(change: Callable[[np.ndarray], np.ndarray]) -> None:
    assert find_decay(GRADIENT, change(GRADIENT), WEIGHT) is None


@pytest.mark.parametrize("factor", [1.0, 0.5, 0.3])
def test_rounding_errors_are_no_decay(factor: float) -> None:
    numbers = find_decay(GRADIENT, GRADIENT * np.float32(factor), WEIGHT)
    assert numbers == (pytest.approx(factor, rel=1e-6), 0)


def test_weights_parallel_to_the_gradient_give_no_two_numbers() -> None:
    assert find_decay(GRADIENT, (GRADIENT * np.float32(3)).round(2), GRADIENT) is None


def find(gradients: dict[str, np.ndarray], received: dict[str, np.ndarray]) -> GradientChanges:
    return find_changes(gradients, received, lambda name: WEIGHT.reshape(-1)[: received[name].size])


def test_changes_of_several_gradients() -> None:
    vector, weight = GRADIENT[0], WEIGHT.reshape(-1)[:200]
    before = {"same": vector, "equal": vector, "clipped": vector, "decayed": vector, "masked": vector, "frozen": vector}
    masked = vector * (weight > 0)
    after = {
        "same": vector, "equal": vector.copy(), "clipped": vector / 2, "decayed": vector + np.float32(0.1) * weight,
        "masked": masked, "unused": np.float32(0.1) * weight, "of another tape": masked,
    }  # fmt: skip
    changes = find(before, after)
    assert changes.factors == {"clipped": pytest.approx(0.5)}
    assert changes.decays == {"decayed": pytest.approx(0.1, rel=1e-4), "unused": pytest.approx(0.1, rel=1e-6)}
    assert changes.others.keys() == {"masked"}
    assert changes.others["masked"] is vector


def test_small_gradients_change_as_the_large_ones() -> None:
    """A factor explains any change of one number."""
    before = {"bias": GRADIENT[0, :1], "kernel": GRADIENT[0]}
    after = {name: x + np.float32(0.1) * WEIGHT.reshape(-1)[: x.size] for name, x in before.items()}
    changes = find(before, after)
    assert changes.factors == {}
    assert changes.decays == {name: pytest.approx(0.1, rel=1e-4) for name in before}
    assert find(before, {**after, "bias": before["bias"] * 3}).factors == {"bias": pytest.approx(3)}


def test_a_sum_over_tokens_that_is_clipped_has_a_factor() -> None:
    tokens = np.random.default_rng(2).normal(size=(3, 300, 200)).astype(np.float32)
    before, after = {"table": tokens.sum(0)}, {"table": (tokens * np.float32(0.3)).sum(0)}
    changes = find_changes(before, after, lambda name: WEIGHT)
    assert (changes.factors, changes.decays) == ({"table": pytest.approx(0.3, rel=1e-5)}, {})
    assert find_changes(before, {"table": after["table"] + np.float32(0.01) * WEIGHT}, lambda name: WEIGHT).others
