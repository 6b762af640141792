import pytest

from common.diagnose.explain.moving_statistics import name_moving_variance


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
