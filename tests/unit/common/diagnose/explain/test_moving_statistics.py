import numpy as np
import pytest

from common.diagnose.explain.moving_statistics import (
    FirstStep,
    find_momentum_factors,
    find_variance_divisor,
    name_moving_variance,
)


@pytest.mark.parametrize(
    ("name", "variance"),
    [
        ("bn.running_mean", "bn.running_var"),
        ("bn/moving_mean", "bn/moving_variance"),
        ("bn/moving_variance", "bn/moving_variance"),
        ("mean_pool.weight", "mean_pool.weight"),
    ],
)
def test_the_variance_of_a_moving_mean(name: str, variance: str) -> None:
    assert name_moving_variance(name) == variance


@pytest.mark.parametrize("has_other_mean", [False, True])
def test_another_momentum_moves_the_mean_too(has_other_mean: bool) -> None:
    """A variance far above its start moves 32/31 times as far if one side divides by n - 1."""
    mean, variance = np.linspace(1, 2, 5), np.linspace(1e9, 2e9, 5)
    factor = 32 / 31 if has_other_mean else 1
    steps = [
        FirstStep("bn.running_mean", np.zeros(5), 0.1 * mean, 0.1 * factor * mean),
        FirstStep("bn.running_var", np.ones(5), 0.9 + 0.1 * variance, 0.9 + 0.1 * variance * 32 / 31),
    ]
    factors = find_momentum_factors(steps, "float32")
    assert [*factors] == (["bn.running_mean", "bn.running_var"] if has_other_mean else [])


@pytest.mark.parametrize("is_first", [True, False])
def test_a_divisor_is_found_in_statistics_that_have_lost_digits(is_first: bool) -> None:
    """With a momentum of 0.01, 0.99 of a moving variance of float32 is its start, and a thousandth the batch's."""
    variance, start = np.random.default_rng(0).uniform(0.05, 0.2, 64), np.ones(64)
    moved = [(0.99 * start + 0.01 * x).astype(np.float32).astype(float) for x in (variance, variance * 256 / 255)]
    divisor = find_variance_divisor([FirstStep("bn.running_var", start, *moved[:: 1 if is_first else -1])], "float32")
    assert divisor is not None
    assert divisor.n == 256
    assert divisor.factor == pytest.approx(256 / 255 if is_first else 255 / 256, rel=1e-4)


def test_other_variances_have_no_divisor() -> None:
    start, (a, b) = np.ones(64), np.random.default_rng(0).uniform(0.05, 0.2, (2, 64))
    assert (
        find_variance_divisor([FirstStep("bn.running_var", start, 0.99 + 0.01 * a, 0.99 + 0.01 * b)], "float32") is None
    )


@pytest.mark.parametrize(("counts", "n"), [((64, 25_000), 25_000), ((64,), None), ((), None)])
def test_a_large_divisor_is_found_only_if_the_number_of_elements_is_known(
    counts: tuple[int, ...], n: int | None
) -> None:
    start, variance = np.ones(64), np.random.default_rng(0).uniform(0.5, 2, 64)
    moved = [0.9 * start + 0.1 * x for x in (variance, variance * 25_000 / 24_999)]
    divisor = find_variance_divisor([FirstStep("bn.running_var", start, *moved)], "float32", counts=counts)
    assert (divisor and divisor.n) == n
    equal = FirstStep("bn.running_var", start, moved[0], moved[0])
    assert find_variance_divisor([equal], "float32", counts=counts) is None
