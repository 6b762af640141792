"""The terms of losses of two records, without the scripts that made them."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from common.diagnose.recorded.losses.loss_terms import explain_terms


def make_side(loss: float, factor: float | None = None, names: Sequence[str] = ("cross_entropy",)) -> Any:
    """Return a side with loss functions that return 1, the rest of its loss, and an activity regularizer."""
    terms = [{"name": name, "arguments": {}, "value": 1.0, "share": 1.0} for name in names]
    return SimpleNamespace(
        record=SimpleNamespace(get_step_facts=lambda _: [{"terms": [terms]}], get_loss=lambda _: loss),
        batches=SimpleNamespace(list_micro_batches=lambda _: [(0, 0)]),
        layers=[{"path": "hidden", "attributes": {"activity_regularizer": factor}}],
    )


@pytest.mark.parametrize(("factor", "is_named"), [(0.01, True), (None, False)])
def test_a_rest_may_come_from_an_activity_regularizer(factor: float | None, is_named: bool) -> None:
    a, b = make_side(1.5, factor), make_side(1.25, factor)
    pair = cast(Any, SimpleNamespace(a=a, b=b, sides=(a, b), precision="float32"))
    (explanation,) = explain_terms(pair, 1)
    assert explanation.cause == "loss_terms" and not explanation.confirmed
    expected = ": compare the activity regularizer of hidden"
    assert explanation.sentence.endswith(expected) is is_named


@pytest.mark.parametrize(("name", "is_confirmed"), [("kl_div", True), ("script.DetectionLoss", False)])
def test_a_loss_of_the_script_may_be_what_the_other_side_has_as_terms(name: str, is_confirmed: bool) -> None:
    a, b = make_side(1.0, names=[name]), make_side(2.0, names=["huber_loss", "bce_loss"])
    pair = cast(Any, SimpleNamespace(a=a, b=b, sides=(a, b), precision="float32"))
    explanations = explain_terms(pair, 1)
    assert [explanation.cause for explanation in explanations] == ["missing_loss_term"] * 3
    assert {explanation.confirmed for explanation in explanations} == {is_confirmed}


@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
def test_a_term_that_one_script_divides_by_the_number_of_other_labels_is_named(name: str) -> None:
    """The term may be another function in the other framework, beside one that is the same in both."""
    sides = [make_side(2.6, names=["cross_entropy", "mse_loss"]), make_side(2.0, names=[name, "mse_loss"])]
    for side, value in zip(sides, (1.6, 1.0), strict=True):
        term = side.record.get_step_facts(1)[0]["terms"][0][0]
        term["value"] = term["share"] = value
        facts = side.record.get_step_facts(1)
        side.record.get_step_facts = lambda _, facts=facts: facts
        side.batches.has_abridged_labels = lambda step: False
        side.batches.read_micro_batch = lambda *place: (
            {"target": np.array([3, 1, 0, 0, 2, 5, 4, 0])} if place[-1] == "label" else {}
        )
    pair = cast(Any, SimpleNamespace(a=sides[0], b=sides[1], sides=sides, precision="float32"))
    (explanation,) = explain_terms(pair, 1)
    assert (explanation.cause, explanation.confirmed) == ("loss_reduction", True)
    words = " of A (1.6) is divided by the number of labels other than 0 (5 of 8); that of B (1) by the number of all"
    assert explanation.sentence.endswith(words), explanation.sentence
