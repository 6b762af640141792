"""Tests of the cost model, which predicts the time of an all-reduce."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_impl.communication.cost_model import compute_bus_bandwidth, fit_alpha_beta, predict_seconds


@pytest.mark.parametrize(
    ("algorithm", "four", "five"),
    [  # seconds by N, for alpha = 1, beta = 10 and 8 bytes
        ("gather_broadcast", 6 * 81, 8 * 81),
        ("all_to_all", 3 * 81, 4 * 81),
        ("ring", 6 * 21, 8 * 17),
        ("recursive_doubling", 2 * 81, 4 * 81),
        ("native", 6 * 21, 8 * 17),
    ],
)
def test_predictions(algorithm: str, four: float, five: float) -> None:
    assert predict_seconds(algorithm, 4, 8, 1, 10) == four
    assert predict_seconds(algorithm, 5, 8, 1, 10) == five
    assert predict_seconds(algorithm, 1, 8, 1, 10) == 0


@given(alpha=st.floats(1e-7, 1e-2), beta=st.floats(1e-12, 1e-6))
def test_alpha_and_beta_are_found_again(alpha: float, beta: float) -> None:
    sizes = [4**power for power in range(1, 13)]
    fitted = fit_alpha_beta(sizes, [alpha + beta * size for size in sizes])
    assert fitted == pytest.approx((alpha, beta), rel=1e-6)


def test_a_fit_to_noise_is_not_negative() -> None:
    assert fit_alpha_beta([1000, 2000, 3000], [1.0, 3.0, 5.0])[0] == 0
    assert fit_alpha_beta([1000, 2000, 3000], [3.0, 2.0, 1.0])[1] == 0


def test_bus_bandwidth() -> None:
    assert compute_bus_bandwidth(4, 1000, 0.5) == 3000
