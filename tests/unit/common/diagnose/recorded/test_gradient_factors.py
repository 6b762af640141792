"""Tests of gradients that differ though the loss is the same: factors, and weights in more operations."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.recorded.stages.gradient_factors import explain_factor, list_titles
from common.diagnose.recorded.stages.gradients import _explain_gradient
from tests.unit.common.diagnose.recorded.operations.traces import Script

GRADIENTS = dict(zip(("embed", "norm", "fc1", "fc2"), np.random.default_rng(0).normal(size=(4, 5)), strict=True))


def make_pair(micro_batches: int = 1, scale: float | None = None, replicas: int = 1) -> Any:
    facts = {"micro_batches": 1, "loss_scale": None}
    a = SimpleNamespace(name="a", replicas=1, get_facts=lambda step: facts)
    facts_b = {"micro_batches": micro_batches, "loss_scale": scale}
    return SimpleNamespace(a=a, b=SimpleNamespace(name="b", replicas=replicas, get_facts=lambda step: facts_b))


@pytest.mark.parametrize(
    ("titles", "words"),
    [
        (["fc1"], " of fc1"),
        (["embed", "fc1"], " of embed, fc1"),
        (["embed", "norm", "fc1"], ""),
        ([*GRADIENTS], ""),
    ],
)
def test_the_gradients_with_a_factor_are_named_unless_they_are_most(titles: list[str], words: str) -> None:
    differing = {title: (GRADIENTS[title], GRADIENTS[title] / 5) for title in titles}
    explanation = explain_factor(make_pair(), 1, differing, len(GRADIENTS))
    assert explanation is not None
    assert explanation.cause == "scaled_gradient"
    assert explanation.sentence == f"every gradient{words} of B is 0.2 times A's, and the loss is the same"


@pytest.mark.parametrize(("settings", "cause"), [({}, None), ({"scale": 8.0}, "not_unscaled"),
                                                 ({"replicas": 8}, "not_averaged")])  # fmt: skip
def test_two_elements_have_a_factor_by_chance_unless_it_is_known(settings: dict[str, Any], cause: str | None) -> None:
    gradient = np.array([0.3, -0.3])  # of the biases of two classes
    explanation = explain_factor(make_pair(**settings), 1, {"bias": (gradient, 8 * gradient)}, 3)
    assert (explanation and explanation.cause) == cause


def test_three_titles_are_listed() -> None:
    assert list_titles([*GRADIENTS]) == "embed, norm, fc1 and others"
    assert list_titles([*GRADIENTS][:3]) == "embed, norm, fc1"


def _make_traced(uses: tuple[int, int]) -> Any:
    """Return two records whose scripts multiply by a weight this often."""
    sides = []
    for count in uses:
        script = Script(x=np.ones((4, 3)), w=np.full(3, 2.0))
        weight, x = script.name("weight/w", script.inputs["w"]), script.inputs["x"]
        for _ in range(count):
            x = script.call("mul", np.multiply, x, weight)
        trace = script.finish(script.call("sum", np.sum, x))
        record = SimpleNamespace(ranks=[SimpleNamespace(operations=trace)])
        sides.append(SimpleNamespace(record=record, batches=SimpleNamespace(count_examples=lambda step: [4])))
    models = SimpleNamespace(variables=[SimpleNamespace(title="w", names_a=["w"], names_b=["w"])])
    orders = {1: np.arange(4)}
    return SimpleNamespace(a=sides[0], b=sides[1], sides=sides, models=models, equal_steps=[1], orders=orders)


@pytest.mark.parametrize("uses", [(1, 2), (2, 2)])
@pytest.mark.parametrize("gradients", [(np.arange(5.0), np.arange(5.0) ** 2), (np.ones(2), np.full(2, 1.5))])
def test_a_weight_in_more_operations_explains_a_gradient_without_a_certain_reason(
    uses: tuple[int, int], gradients: tuple[np.ndarray, np.ndarray]
) -> None:
    explanation = _explain_gradient(_make_traced(uses), "w", *gradients)
    if uses == (2, 2):
        assert explanation is None
    else:
        assert explanation is not None
        assert explanation.cause == "gradient"
        assert explanation.sentence.startswith("it is used in 1 operation of A (")
        assert " and in 2 operations of B (" in explanation.sentence


def test_a_certain_reason_of_a_gradient_comes_before_its_operations() -> None:
    explanation = _explain_gradient(_make_traced((1, 2)), "w", np.ones(5), np.full(5, 1.5))
    assert explanation is not None
    assert explanation.cause == "scaled_gradient"
    assert _explain_gradient(_make_traced((1, 2)), "w", np.ones(5), np.full(5, 1.002)) is None
