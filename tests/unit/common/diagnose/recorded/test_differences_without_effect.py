"""Tests of differing activations on which neither the loss nor the gradients depend."""

from types import SimpleNamespace
from typing import Any

import pytest

from common.diagnose.findings import DIFFERS, EQUAL, SHAPE_OF_OUTPUTS, Cause, Stage, TensorCheck
from common.diagnose.recorded import differences_without_effect
from common.diagnose.recorded.differences_without_effect import (
    _drop_activations_without_effect,
    has_own_difference_of_loss,
    is_without_effect,
)
from common.diagnose.recorded.losses.partial_labels import NOT_COMPARED_LABELS, accept_unknown_labels

CAUSE = Cause("operation", "b", "activations", "input of fc", "B computes something else", confirmed=True)


def _compare(checks: dict[str, list[TensorCheck]], cause: Cause = CAUSE) -> Stage:
    """Return the stage "activations" after a difference of one layer, with checks of the loss and of gradients."""
    activations = Stage("activations", [TensorCheck("embed", 0.0), TensorCheck("input of fc", 0.5)], [cause])
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


def test_outputs_of_another_shape_have_no_effect_if_the_gradients_count_as_equal() -> None:
    """The model of one script returns embeddings, and that of the other one their products."""
    cause = Cause(SHAPE_OF_OUTPUTS, "b", "activations", "outputs", "outputs are [8, 6] in A and [8, 8] in B", True)
    checks = {"loss": [TensorCheck("step 1: loss", 0.0)], "gradients": [TensorCheck("step 1: fc", 2e-3, 4e-5)]}
    assert _compare(checks, cause).verdict == EQUAL
    checks["gradients"] = [TensorCheck("step 1: fc", 0.1)]
    assert _compare(checks, cause).verdict == DIFFERS


@pytest.mark.parametrize(
    ("difference", "noise", "is_accepted"), [(0.0, 1e-7, True), (0.1, 1e-7, False), (0.0, 1, False)]
)
def test_data_count_as_compared_without_labels_if_the_gradients_are_equal(
    difference: float, noise: float, is_accepted: bool
) -> None:
    data = Stage("data", [TensorCheck("step 1: examples", 0.0)])
    for step in (1, 2):
        data.omit(f"the loss functions receive labels in step {step}", NOT_COMPARED_LABELS)
    stages = {"data": data, "loss": Stage("loss", [TensorCheck("step 1: loss", 0.0)])}
    stages["gradients"] = Stage("gradients", [TensorCheck("step 1: fc", difference, noise)])
    pair: Any = SimpleNamespace(get_stage=lambda name: stages[name])
    accept_unknown_labels(pair)
    assert (data.omission == "") == is_accepted
    expected = "labels are not compared, but the losses and gradients are: the loss functions receive labels in step 1"
    assert (data.note == expected) == is_accepted


@pytest.mark.parametrize(
    ("step", "checks", "expected"),
    [
        (1, [TensorCheck("step 1: fc", 0.0)], True),
        (2, [TensorCheck("step 1: fc", 0.0)], False),
        (2, [TensorCheck("step 1: fc", 0.0), TensorCheck("step 2: fc", 0.0)], True),
        (2, [TensorCheck("step 1: fc", 0.0), TensorCheck("step 2: fc", 0.5)], False),
    ],
)
def test_batches_that_differ_in_a_later_step_are_accepted_by_the_gradients_of_this_step(
    step: int, checks: list[TensorCheck], expected: bool
) -> None:
    losses = [TensorCheck(f"step {number}: loss", 0.0) for number in (1, 2)]
    stages = {"activations": Stage("activations"), "loss": Stage("loss", losses), "gradients": Stage("x", checks)}
    pair: Any = SimpleNamespace(get_stage=lambda name: stages[name], equal_steps=[1, 2])
    assert is_without_effect(pair, step) == expected


@pytest.mark.parametrize(
    ("outputs", "losses", "expected"),
    [
        ([1e-6, 2e-6], (1.0, 1.5), True),
        ([1e-6, 1e-3], (1.0, 1.5), False),
        ([1e-6, 2e-6], (1.0, 1.001), False),
        ([2e-3], (1.0, 9e9), False),
        ([1e-6], None, False),
        ([], (1.0, 1.5), False),
    ],
    ids=["own", "one output", "close", "large", "no loss", "no outputs"],
)
def test_a_loss_that_differs_far_more_than_the_outputs_differs_for_a_reason_of_its_own(
    outputs: list[float], losses: tuple[float, float] | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences_without_effect, "find_closest_losses", lambda pair, step: losses)
    checks = [TensorCheck("fc", 0.5), *(TensorCheck(f"output {name}", x) for name, x in enumerate(outputs))]
    pair: Any = SimpleNamespace(get_stage=lambda name: Stage(name, checks), equal_steps=[1])
    assert has_own_difference_of_loss(pair) == expected


@pytest.mark.parametrize("is_confirmed", [False, True])
def test_activations_that_do_not_explain_a_loss_are_dropped_unless_their_cause_is_certain(
    is_confirmed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences_without_effect, "find_closest_losses", lambda pair, step: (1.0, 1.5))
    cause = Cause("operation", "b", "activations", "fc", "B computes something else", confirmed=is_confirmed)
    checks = [TensorCheck("embed", 0.0), TensorCheck("fc", 0.5), TensorCheck("output 0", 1e-6)]
    activations, loss = Stage("activations", checks, [cause]), Stage("loss", [TensorCheck("step 1: loss", 0.5)])
    loss.add_cause("loss_reduction", "b", "loss", "B takes the sum")
    pair: Any = SimpleNamespace(get_stage=lambda name: loss if name == "loss" else activations, equal_steps=[1])
    _drop_activations_without_effect(pair)
    assert [known.cause for known in activations.causes] == (["operation"] if is_confirmed else [])
    assert ("fc" in [check.tensor for check in activations.checks]) == is_confirmed
    assert (activations.note == "the loss differs far more than what differs in the layers") == (not is_confirmed)
