"""Tests of shared layers that two models call in another order."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.layer_match import LayerMatch
from common.diagnose.recorded.operations.call_order import CallOrder
from tests.unit.common.diagnose.recorded.operations.traces import Script
from tests.unit.common.recording.tensors import to_tensor

ENCODER, HEAD = (LayerMatch("linear", name, name, name) for name in ("encoder", "head"))
FIRST, SECOND, OTHER = np.random.default_rng(0).normal(size=(3, 4, 5))


def _record(*sentences: np.ndarray) -> Any:
    """Return a side whose encoder has a part that receives the sentences one after the other; the head receives one."""
    script = Script(**{str(index): sentence for index, sentence in enumerate(sentences)})
    cell, head = (
        script.name(f"weight/{name}", to_tensor(np.ones((5, 5)))) for name in ("encoder.cell.weight", "head.weight")
    )
    encoded = [script.call("matmul", np.matmul, sentence, cell) for sentence in script.inputs.values()]
    loss = script.call("sum", lambda *x: np.sum(x), script.call("matmul", np.matmul, encoded[0], head), *encoded)
    trace = script.finish(loss)
    layers = [
        {"path": "encoder", "variables": {}},
        {"path": "encoder.cell", "variables": {"weight": "encoder.cell.weight"}},
        {"path": "head", "variables": {"weight": "head.weight"}},
    ]
    return SimpleNamespace(layers=layers, record=SimpleNamespace(ranks=[SimpleNamespace(operations=trace)]))


@pytest.mark.parametrize(
    ("calls_of_b", "is_other"),
    [((FIRST, SECOND), False), ((SECOND, FIRST), True), ((OTHER, SECOND), False), ((SECOND,), False)],
)
def test_calls_in_another_order(calls_of_b: tuple[np.ndarray, ...], is_other: bool) -> None:
    pair: Any = SimpleNamespace(sides=(_record(FIRST, SECOND), _record(*calls_of_b)))
    order = CallOrder(pair)
    assert order.has_other_first_call(ENCODER) == is_other
    assert not order.has_other_first_call(HEAD)  # is called once


def test_records_without_operations_have_no_order() -> None:
    pair: Any = SimpleNamespace(sides=(_record(FIRST, SECOND), _record(SECOND, FIRST)))
    pair.sides[1].record.ranks[0].operations = None
    assert not CallOrder(pair).has_other_first_call(ENCODER)
