"""Tests of states that scripts pass to recurrent layers."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.recorded.operations.initial_states import explain_passed_states
from common.recording.operation_format import OperationTrace
from tests.unit.common.diagnose.recorded.operations.test_explanation import make_pair
from tests.unit.common.diagnose.recorded.operations.traces import Script
from tests.unit.common.recording.tensors import Tensor, to_tensor

STEPS = np.random.default_rng(7).normal(size=(2, 3, 4))  # examples, time steps, features
WEIGHT, STATE = np.random.default_rng(8).normal(size=(2, 4, 4))


def _recur(x: np.ndarray, weight: np.ndarray, *states: np.ndarray) -> list[np.ndarray]:
    state = np.tanh(x @ weight).reshape(2, -1, 4).sum(1) + (states[0] if states else 0)
    return [state * 2, state]


def _loop(passed: str, count: int = 3) -> OperationTrace:
    """Return the operations of a loop over time. passed: the state that calls receive after the first one."""
    script = Script(x=STEPS)
    weight = script.name("weight/rnn.weight", to_tensor(WEIGHT))
    first = script.call("zeros" if passed != "again" else "tile", lambda: STATE[:2] * (passed == "again"))
    states: dict[str, list[Tensor]] = {
        "none": [],
        "zeros": [first],
        "again": [first],
        "last": [first],
        "other": [first],
    }
    received, outputs = states[passed], []
    for index in range(count):
        x = script.call("getitem", lambda x, i=index, **_: x[:, i], script.inputs["x"], index=f"[:, {index}]")
        output, state = script.call_all("GRU", _recur, x, weight, *received)
        outputs.append(output)
        if passed == "last":
            received = [state]
        elif passed == "other":
            received = [script.call("tanh", np.tanh, state)]
    return _finish(script, outputs)


def _finish(script: Script, outputs: list[Tensor]) -> OperationTrace:
    total = script.call("sum", lambda *x: np.sum(x), *outputs)
    return script.finish(total)


def _call_once() -> OperationTrace:
    """Return the operations of a single call for the whole sequence."""
    script = Script(x=STEPS)
    weight = script.name("weight/rnn.weight", to_tensor(WEIGHT))
    return _finish(script, script.call_all("GRU", _recur, script.inputs["x"], weight)[:1])


def _pair(a: OperationTrace, b: OperationTrace, kind: str = "GRU") -> Any:
    pair = make_pair(a, b)
    for side in pair.sides:
        side.layers = [
            {"path": "rnn.cell", "variables": {"weight": "rnn.weight"}},
            {"path": "rnn2", "variables": {"weight": "x"}},
        ]
    pair.models.layers = [
        SimpleNamespace(kind="Linear", path_a="rnn", path_b="rnn", title="dense"),
        SimpleNamespace(kind=kind, path_a="rnn", path_b="rnn", title="rnn"),
    ]
    return pair


@pytest.mark.parametrize(
    ("traces", "words"),
    [
        ((_loop("last"), _loop("zeros")), "A passes the state that call 1 returned, and B passes no state"),
        ((_loop("none"), _loop("last")), "A passes no state, and B passes the state that call 1 returned"),
        ((_loop("again"), _loop("last")), "A passes the state of the first call again, and B passes the state that"),
        ((_call_once(), _loop("zeros")), "A goes through the sequence at once, and B passes no state"),
        ((_loop("none"), _call_once()), "A passes no state, and B goes through the sequence at once"),
    ],
)
def test_a_state_that_only_one_script_passes_from_call_to_call_is_named(
    traces: tuple[OperationTrace, OperationTrace], words: str
) -> None:
    explanation = explain_passed_states(_pair(*traces))
    assert explanation is not None
    assert (explanation.cause, explanation.confirmed) == ("recurrent_layer", True)
    assert explanation.sentence.startswith(f"call 2 of rnn: {words}")
    assert ", in test_initial_states.py:" in explanation.sentence


@pytest.mark.parametrize(
    "traces",
    [
        (_loop("last"), _loop("last")),
        (_loop("none"), _loop("zeros")),
        (_call_once(), _loop("last")),
        (_loop("last"), _loop("zeros", count=2)),  # not called equally often
        (_loop("last", count=2), _call_once()),  # the sequence has other steps
        (_loop("other"), _loop("zeros")),  # a state that no call returned
    ],
)
def test_other_calls_are_not_compared(traces: tuple[OperationTrace, OperationTrace]) -> None:
    assert explain_passed_states(_pair(*traces)) is None


def test_only_recurrent_layers_and_recorded_operations_pass_states() -> None:
    a, b = _loop("last"), _loop("none")
    assert explain_passed_states(_pair(a, b, kind="Conv1d")) is None
    assert explain_passed_states(_pair(a, {**b, "complete": False})) is None


def test_a_state_that_only_one_script_passes_to_the_first_call_comes_first() -> None:
    traces = _loop("again"), _loop("none")
    for trace in traces:
        call = next(x for x in trace["operations"] if x["name"] == "GRU")
        trace["names"]["layer/rnn/output"] = call["outputs"][0]
    explanation = explain_passed_states(_pair(*traces))
    assert explanation is not None
    assert explanation.sentence.startswith("rnn: only A's layer begins with a state that its script passes, in ")
