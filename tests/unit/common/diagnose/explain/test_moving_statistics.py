import numpy as np
import pytest

from common.diagnose.explain.moving_statistics import FirstStep, find_momentum_factors, name_moving_variance


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
