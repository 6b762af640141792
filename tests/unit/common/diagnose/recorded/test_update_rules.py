"""Tests of the optimizers' formulas at values that scripts reach; recordings of scripts test the others."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.recorded.optimizer_settings import OptimizerSettings
from common.diagnose.recorded.rule_comparison import find_repeated_rows
from common.diagnose.recorded.update_rules import Parameter, compute_update


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_keras_momentum_of_rmsprop_holds_the_learning_rate_even_if_it_is_zero(rate: float) -> None:
    """A warm-up begins with a learning rate of 0."""
    settings = OptimizerSettings("rmsprop", rho=0.75, momentum=0.5, rate_inside_velocity=True)
    weight, gradient, velocity = np.ones(2), np.array([2.0, -2.0]), np.full(2, 0.25)
    slots = {"square_avg": np.zeros(2), "momentum_buffer": velocity}
    updated, slots_after = compute_update(Parameter(settings, rate, 2, weight, gradient, slots))
    expected = 0.5 * velocity + rate * gradient / np.sqrt(0.25 * gradient**2)
    np.testing.assert_allclose(slots_after["momentum_buffer"], expected)
    np.testing.assert_allclose(updated, weight - expected)


@pytest.mark.parametrize("slot", ["sum", "exp_avg_sq"])
@pytest.mark.parametrize(("rows", "named"), [((1, 3), ("table", 2)), ((), None), ((0, 1, 2, 3), None)])
def test_rows_whose_squares_were_added_one_by_one(
    rows: tuple[int, ...], named: tuple[str, int] | None, slot: str
) -> None:
    expected = np.ones((4, 3))
    after = expected.copy()
    after[[*rows]] = 0.5
    slots = {f"{slot}.table": expected}
    recorded: Any = SimpleNamespace(
        expected_slots=slots, recorded_slots={*slots}, update=SimpleNamespace(slots_after={f"{slot}.table": after})
    )
    assert find_repeated_rows(recorded) == named
