"""Tests of recurrent layers of PyTorch that take the examples for time steps."""

from types import SimpleNamespace
from typing import Any

import pytest

from common.diagnose.layer_match import LayerMatch
from common.diagnose.recorded.time_first_layers import explain_time_first


def _make_side(name: str, batch_first: bool | None, are_time_first: bool = False) -> Any:
    attributes = {} if batch_first is None else {"batch_first": batch_first}
    batches = SimpleNamespace(are_time_first=are_time_first)
    return SimpleNamespace(name=name, layers=[{"path": "rnn", "attributes": attributes}], batches=batches)


@pytest.mark.parametrize(
    ("batch_first", "are_time_first", "is_named"),
    [(False, False, True), (True, False, False), (False, True, False)],
)
def test_a_layer_without_batch_first_is_named(batch_first: bool, are_time_first: bool, is_named: bool) -> None:
    pair: Any = SimpleNamespace(a=_make_side("a", None), b=_make_side("b", batch_first, are_time_first))
    explanation = explain_time_first(pair, LayerMatch("GRU", "rnn", "rnn", "rnn"))
    assert (explanation is not None) == is_named
    if explanation is not None:
        assert explanation.cause == "time_axis"
        assert explanation.sentence.startswith("rnn in B takes the time in the first axis (batch_first)")
