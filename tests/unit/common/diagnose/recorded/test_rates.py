"""Tests of the mistakes that learning rates show."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.recorded.rates import explain_rates, explain_staircase

WARM_UP = (0.1, 0.2, 0.3)


@pytest.mark.parametrize(
    ("a", "b", "cause", "side"),
    [
        (WARM_UP, (0.1, 0.3, 0.5), "scheduler_stepped_twice", "b"),
        (WARM_UP, (0.1, 0.1, 0.2), "updates_per_schedule_step", "b"),
        (WARM_UP, (0.2, 0.3, 0.4), "schedule_early", "b"),
        ((0.0, 0.1, 0.2), WARM_UP, "schedule_early", "b"),
        (WARM_UP, (0.1, 0.1, 0.1), "no_schedule", "b"),
        (WARM_UP, (0.1, 0.2, 0.2), "schedule", "b"),  # no scheduler steps twice
        ((0.1, 0.2, 0.2), WARM_UP, "schedule", "b"),
    ],
)
def test_mistakes(a: tuple[float, ...], b: tuple[float, ...], cause: str, side: str) -> None:
    for scale in (1, 1e-9):
        explanation = explain_rates(scale * np.array(a), scale * np.array(b), [1, 1])
        assert (explanation.cause, explanation.side) == (cause, side)


def test_scheduler_that_steps_twice() -> None:
    explanation = explain_rates(np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.1, 0.3, 0.5, 0.7]), [1, 1])
    assert explanation.cause == "scheduler_stepped_twice"


@pytest.mark.parametrize(("staircase", "is_named"), [(True, True), (False, False)])
def test_a_schedule_with_a_staircase_is_named(staircase: bool, is_named: bool) -> None:
    scheduler = {"name": "keras.optimizers.schedules.InverseTimeDecay", "decay_steps": 40, "staircase": staircase}
    side: Any = SimpleNamespace(name="b", record=SimpleNamespace(facts={"scheduler": scheduler}))
    explanation = explain_staircase(side, (0.01, 0.009), (0.01, 0.01))
    assert (explanation is not None) == is_named
    if explanation is not None:
        words = "InverseTimeDecay of B has staircase=True and changes the rate only every 40 steps: "
        assert explanation.sentence == f"{words}0.01, 0.009 in A and 0.01, 0.01 in B"
