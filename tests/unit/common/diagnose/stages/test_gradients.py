"""Gradients of the same loss."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.findings import Stage
from common.diagnose.observation import Observation
from common.diagnose.stages.gradients import compare_gradients

STREAM = np.random.default_rng(0)
WEIGHT, BIAS = STREAM.standard_normal((4, 4)), np.ones(4)
EMBEDDING = STREAM.standard_normal((5, 3))
Gradients = dict[str, np.ndarray]


def make_run(gradients: Gradients) -> Any:
    """Return a run whose initial weights are equal, so that a parameter of one side only counts as tied."""
    weights = {name: EMBEDDING for name in gradients}
    return SimpleNamespace(states=[SimpleNamespace(weights=weights)])


def compare(a: Gradients, b: Gradients, inherits: bool = False, tied: bool = False) -> Stage:
    observations = [Observation([], [], {}, {}, gradients) for gradients in (a, b)]
    models = SimpleNamespace(a=observations[0], a_perturbed=observations[0], b=observations[1])
    comparison: Any = SimpleNamespace(
        a=make_run(a if tied else {}),
        b=make_run(b if tied else {}),
        precision="float64",
        evaluation_mode=models,
        has_difference=lambda *stages: inherits,
        unpaired_names=set(),
    )
    (stage,) = compare_gradients(comparison)
    return stage


@pytest.mark.parametrize(
    ("cause", "gradient"),
    [
        ("no_gradient", np.zeros((4, 4))),
        ("scaled_gradient", WEIGHT / 4),
        ("padding_row", np.where(np.arange(4)[:, None] == 0, 0.0, WEIGHT)),
        ("transposed_gradient", WEIGHT.T),
        ("gradient", WEIGHT + 0.1),
    ],
)
def test_a_gradient_is_explained(cause: str, gradient: np.ndarray) -> None:
    a, b = {"weight": WEIGHT, "bias": BIAS}, {"weight": gradient, "bias": BIAS}
    assert [(known.cause, known.tensor) for known in compare(a, b).causes] == [(cause, "weight")]
    assert compare(a, b, inherits=True).verdict == "inherited"
    assert compare(a, a).verdict == "equal"


def test_a_frozen_parameter_is_named() -> None:
    stage = compare({"weight": WEIGHT, "bias": BIAS}, {"weight": WEIGHT})
    assert [(known.cause, known.side, known.tensor) for known in stage.causes] == [("not_trained", "b", "bias")]


@pytest.mark.parametrize("tied_side", ["A", "B"])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_parameter_that_one_side_ties_has_the_sum_of_two_gradients(tied_side: str, transposed: bool) -> None:
    first, second = STREAM.standard_normal((2, 5, 3))
    tied = {"embedding": first + second}
    separate = {"embedding": first, "output": second.T if transposed else second}
    a, b = (tied, separate) if tied_side == "A" else (separate, tied)
    (cause,) = compare(a, b, tied=True).causes
    assert (cause.cause, cause.tensor, cause.confirmed) == ("tied_on_one_side", "output", True)
    assert f"output is tied to embedding in {tied_side} only" in cause.sentence
    separate_side = "B" if tied_side == "A" else "A"
    assert cause.sentence.endswith(f"and the gradient of {tied_side} is the sum of the two of {separate_side}")


def test_a_tied_parameter_with_another_gradient_is_not_confirmed() -> None:
    (cause,) = compare({"embedding": WEIGHT * 3}, {"embedding": WEIGHT, "output": WEIGHT}, tied=True).causes
    assert cause.cause == "tied_on_one_side" and not cause.confirmed
