"""Gradients of the previous step as the cause of a difference, if the weights of both scripts differ."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.recorded.stages import gradients
from common.diagnose.recorded.stages.gradients import _explain_earlier

BEFORE, CURRENT = np.random.default_rng(0).standard_normal((2, 50))


@pytest.mark.parametrize(("share", "cause"), [(1.02, "zero_grad_missing"), (0.5, None)])
def test_gradients_that_are_only_nearly_the_sum_are_not_explained(
    share: float, cause: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "read_paired_gradients", lambda *_, **__: {"w": (BEFORE, BEFORE)})
    pair: Any = SimpleNamespace(equal_steps=[1, 2], measure_weight_difference=lambda step: 0.2)
    explanation = _explain_earlier(pair, 2, {"w": (CURRENT, CURRENT + share * BEFORE)})
    assert (explanation and explanation.cause) == cause
