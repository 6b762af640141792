"""The terms of losses of two records, without the scripts that made them."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

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
