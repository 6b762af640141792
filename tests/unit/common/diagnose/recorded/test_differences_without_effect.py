"""Tests of differing activations on which neither the loss nor the gradients depend."""

from types import SimpleNamespace
from typing import Any

import pytest

from common.diagnose.findings import DIFFERS, EQUAL, Cause, Stage, TensorCheck
from common.diagnose.recorded.walk import _drop_activations_without_effect

CAUSE = Cause("operation", "b", "activations", "input of fc", "B computes something else", confirmed=True)


def _compare(checks: dict[str, list[TensorCheck]]) -> Stage:
    """Return the stage "activations" after a difference of one layer, with checks of the loss and of gradients."""
    activations = Stage("activations", [TensorCheck("embed", 0.0), TensorCheck("input of fc", 0.5)], [CAUSE])
    stages = {"activations": activations, **{name: Stage(name, x) for name, x in checks.items()}}
    pair: Any = SimpleNamespace(get_stage=lambda name: stages[name], equal_steps=[1, 2])
    _drop_activations_without_effect(pair)
    return activations


def test_difference_without_effect_on_the_gradients_is_dropped() -> None:
    later = TensorCheck("step 2: loss", 0.5)
    equal = {"loss": [TensorCheck("step 1: loss", 1e-8, 1e-7), later], "gradients": [TensorCheck("step 1: fc", 0.0)]}
    stage = _compare(equal)
    assert (stage.verdict, stage.causes, [check.tensor for check in stage.checks]) == (EQUAL, [], ["embed"])
    assert stage.note == "the loss and the gradients of step 1 do not depend on what differs"


@pytest.mark.parametrize(
    "gradients",
    [
        [],
        [TensorCheck("step 1: fc", 0.1)],
        [TensorCheck("step 1: fc", 0.1, 1.0)],
        [TensorCheck("step 1: fc", 2e-3, 4e-5)],
        [TensorCheck("step 2: fc", 0.0)],
    ],
    ids=["none", "differ", "rounding", "small", "later"],
)
def test_difference_that_gradients_do_not_exclude_stays(gradients: list[TensorCheck]) -> None:
    stage = _compare({"loss": [TensorCheck("step 1: loss", 0.0)], "gradients": gradients})
    assert (stage.verdict, stage.causes) == (DIFFERS, [CAUSE])
