"""Gradients of the previous step as the cause of a difference, if the weights of both scripts differ."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.recorded.stages import gradients
from common.diagnose.recorded.stages.gradients import _explain_earlier, _find_added

BEFORE, CURRENT = np.random.default_rng(0).standard_normal((2, 50))


@pytest.mark.parametrize(("share", "cause"), [(1.02, "zero_grad_missing"), (0.5, None)])
def test_gradients_that_are_only_nearly_the_sum_are_not_explained(
    share: float, cause: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "read_paired_gradients", lambda *_, **__: {"w": (BEFORE, BEFORE)})
    pair: Any = SimpleNamespace(equal_steps=[1, 2], measure_weight_difference=lambda step: 0.2)
    explanation = _explain_earlier(pair, 2, {"w": (CURRENT, CURRENT + share * BEFORE)})
    assert (explanation and explanation.cause) == cause


@pytest.mark.parametrize(
    ("share", "side", "is_named"), [(0.06, "b", True), (0.06, "a", True), (0.0, "b", False), (0.003, "b", False)]
)
def test_a_small_part_of_earlier_gradients_is_named(
    share: float, side: str, is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights differ a little, so that the gradients of the step are 0.5 % larger on one side."""
    other = 1.005 * CURRENT + share * BEFORE
    both = (CURRENT, other) if side == "b" else (other, CURRENT)
    steps = {1: {"w": (BEFORE, BEFORE)}, 2: {"w": both}}
    monkeypatch.setattr(gradients, "read_paired_gradients", lambda pair, step: steps[step])
    pair: Any = SimpleNamespace()
    explanation = _find_added(pair, 2)
    assert (explanation is not None) == is_named
    if explanation is not None:
        assert (explanation.cause, explanation.side) == ("zero_grad_missing", side)
        assert "adds 0.06 times the gradients of step 1" in explanation.sentence
