"""Tests of layers whose parts are compared with the operations of another script."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from common.diagnose.recorded.operations.explanation import explain_operations
from common.diagnose.recorded.operations.operation_names import LOSS
from common.recording.operation_format import OperationTrace
from tests.unit.common.diagnose.recorded.operations.test_explanation import make_pair
from tests.unit.common.diagnose.recorded.operations.traces import Script
from tests.unit.common.recording.tensors import Tensor, to_tensor

STREAM = np.random.default_rng(7)
QUERY, KEY, STEPS = STREAM.normal(size=(4, 6)), STREAM.normal(size=(5, 6)), STREAM.normal(size=(3, 4))
FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "tanh": np.tanh,
}


def _attend(script: Script, scale: float) -> Tensor:
    query, key = script.inputs.values()
    scores = script.call("matmul", lambda x, y: x @ y.T, query, key)
    scaled = script.call("mul", np.multiply, scores, to_tensor(scale))
    return script.call("softmax", lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True), scaled)


def _recur(script: Script, functions: tuple[str, str]) -> Tensor:
    """Multiply two functions of each row, and add the state before to what they receive."""
    state = script.call("zeros", lambda: np.zeros(4))
    for row in script.inputs.values():
        inner = script.call("add", np.add, row, state)
        doubled = script.call("mul", np.multiply, inner, to_tensor(2.0))
        gates = [script.call(name, FUNCTIONS[name], x) for name, x in zip(functions, (inner, doubled), strict=True)]
        state = script.call("mul", np.multiply, *gates)
    return state


def _finish(script: Script, compute: Any, argument: object, layer: str) -> OperationTrace:
    """Return the operations of a computation, as parts of a layer if it has a name."""
    if layer:
        with script.observer.collect_parts() as parts:
            result = compute(script, argument)
        script.observer.add(layer, {}, [*script.inputs.values()], [result], "", parts)
    else:
        result = compute(script, argument)
    return script.finish(script.call("mean", np.mean, script.call("square", np.square, result)))


def _trace_attention(scale: float, layer: str = "") -> OperationTrace:
    return _finish(Script(query=QUERY, key=KEY), _attend, scale, layer)


def _trace_recurrence(functions: tuple[str, str], layer: str = "") -> OperationTrace:
    return _finish(Script(x=STEPS[0], y=STEPS[1], z=STEPS[2]), _recur, functions, layer)


def _explain(a: OperationTrace, b: OperationTrace) -> str:
    explanation = explain_operations(make_pair(a, b), "loss", LOSS, LOSS)
    return "" if explanation is None else explanation.sentence


@pytest.mark.parametrize("is_reversed", [False, True])
def test_attention_by_hand_is_compared_with_the_parts_of_a_layer(is_reversed: bool) -> None:
    traces = [_trace_attention(0.5, "MultiHeadAttention"), _trace_attention(0.25)]
    sentence = _explain(*(reversed(traces) if is_reversed else traces))
    numbers = (0.25, 0.5) if is_reversed else (0.5, 0.25)
    assert f"A computes mul({numbers[0]}) in " in sentence
    assert f", and B mul({numbers[1]}) in " in sentence
    assert "MultiHeadAttention" not in sentence
    assert _explain(_trace_attention(0.5, "MultiHeadAttention"), _trace_attention(0.5)) == ""


def test_layers_that_both_scripts_call_stay_whole() -> None:
    names = "MultiHeadAttention", "MultiheadAttention"
    traces = [_trace_attention(scale, name) for scale, name in zip((0.5, 0.25), names, strict=True)]
    assert "from tensors with the same numbers A computes MultiHeadAttention in " in _explain(traces[0], traces[1])
    recurrences = [_trace_recurrence(("sigmoid", "tanh"), "Bidirectional"), _trace_recurrence(("tanh", "tanh"), "LSTM")]
    sentence = _explain(recurrences[0], recurrences[1])
    assert "A computes Bidirectional in " in sentence
    assert ", and B LSTM in " in sentence


def test_function_of_a_cell_is_compared_with_that_of_a_layer() -> None:
    layer = _trace_recurrence(("sigmoid", "tanh"), "LSTM")
    sentence = _explain(layer, _trace_recurrence(("hardsigmoid", "tanh")))
    assert "A computes sigmoid in " in sentence
    assert ", and B hardsigmoid in " in sentence
    assert "tanh" not in sentence
    assert _explain(layer, _trace_recurrence(("sigmoid", "tanh"))) == ""


def test_exchanged_functions_of_a_cell_are_named() -> None:
    sentence = _explain(_trace_recurrence(("sigmoid", "tanh"), "LSTM"), _trace_recurrence(("tanh", "sigmoid")))
    assert sentence.startswith("loss: the same functions are applied to other tensors: A computes ")
    assert "sigmoid" in sentence
    assert "tanh" in sentence
