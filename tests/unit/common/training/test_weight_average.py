"""The recursion of the averages, against their definitions."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from common.config.averages import EmaSettings, SwaSettings
from common.training.weight_average import compute_share

STEPS = 12
NO_MEAN = SwaSettings(start_step=None, every=1)
weight_lists = st.lists(st.floats(-10, 10), min_size=STEPS + 1, max_size=STEPS + 1)  # number n is that after update n


def compute_average(ema: EmaSettings, swa: SwaSettings, weights: list[float]) -> float:
    average = weights[0]
    for step in range(1, STEPS + 1):
        average += compute_share(ema, swa, step) * (weights[step] - average)
    return average


@given(
    decay=st.floats(0.01, 0.99),
    start=st.integers(0, STEPS),
    every=st.integers(1, STEPS),
    corrected=st.booleans(),
    weights=weight_lists,
)
def test_moving_average(decay: float, start: int, every: int, corrected: bool, weights: list[float]) -> None:
    counted = np.array(weights[start::every])
    factors = (1 - decay) * decay ** np.arange(len(counted))[::-1]
    expected = (factors * counted).sum()
    if corrected:
        expected /= 1 - decay ** len(counted)
    else:
        expected += decay ** len(counted) * counted[0]
    average = compute_average(EmaSettings(decay, start, corrected, every), NO_MEAN, weights)
    assert np.isclose(average, expected, 1e-12, 1e-12)


@given(start=st.integers(0, STEPS), every=st.integers(1, STEPS), weights=weight_lists)
def test_mean(start: int, every: int, weights: list[float]) -> None:
    average = compute_average(EmaSettings(None, 1, False, 1), SwaSettings(start, every), weights)
    assert np.isclose(average, np.mean(weights[start::every]), 1e-12, 1e-12)


def test_before_the_start_the_average_is_the_weights() -> None:
    assert compute_share(EmaSettings(0.9, 5, True, 2), NO_MEAN, 4) == 1
    assert compute_share(EmaSettings(None, 1, False, 1), SwaSettings(5, 2), 4) == 1
