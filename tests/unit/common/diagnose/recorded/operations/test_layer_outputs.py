"""Tests of outputs of one layer of which two scripts use different ones."""

import numpy as np
import pytest

from common.diagnose.findings import Explanation
from common.diagnose.recorded.operations.explanation import explain_operations
from common.diagnose.recorded.operations.operation_names import LOSS
from common.recording.operation_format import OperationTrace
from tests.unit.common.diagnose.recorded.operations.test_explanation import make_pair
from tests.unit.common.diagnose.recorded.operations.traces import Script

SEQUENCES = np.random.default_rng(3).normal(size=(4, 5, 3))


def _recur(x: np.ndarray) -> list[np.ndarray]:
    """Return all outputs of an LSTM, the last output and the cell state."""
    outputs = np.tanh(np.cumsum(x, 1))
    return [outputs, outputs[:, -1], np.cumsum(x, 1)[:, -1]]


def _score(output: int, name: str = "lstm", is_squeezed: bool = False) -> OperationTrace:
    script = Script(x=SEQUENCES)
    outputs = script.call_all(name, _recur, script.inputs["x"])
    script.name("layer/model.rnn/output", outputs[0])
    state = script.call("squeeze", np.copy, outputs[output]) if is_squeezed else outputs[output]
    scores = script.call("matmul", np.matmul, state, script.inputs["x"][0, :3].view(type(state)))
    used = [script.call("amax", np.max, x) for x in outputs]  # so that both scripts have all outputs
    return script.finish(script.call("sum", lambda *x: sum(map(np.sum, x)), scores, *used))


def _explain(a: OperationTrace, b: OperationTrace) -> Explanation:
    explanation = explain_operations(make_pair(a, b), "loss", LOSS, LOSS)
    assert explanation is not None
    return explanation


@pytest.mark.parametrize("is_squeezed", [False, True])
@pytest.mark.parametrize(("outputs", "words"), [((1, 2), ("second", "third")), ((2, 1), ("third", "second"))])
def test_another_output_of_a_recurrent_layer_is_named(
    outputs: tuple[int, int], words: tuple[str, str], is_squeezed: bool
) -> None:
    explanation = _explain(_score(outputs[0], is_squeezed=is_squeezed), _score(outputs[1], "LSTM"))
    used, other = words
    assert (explanation.cause, explanation.confirmed) == ("recurrent_layer", True)
    sentence = f"loss: A uses the {used} output of model.rnn, and the other script what is its {other}"
    assert explanation.sentence == sentence


def test_outputs_of_a_function_that_is_no_recurrent_layer_are_not_named() -> None:
    assert _explain(_score(1, "topk"), _score(2, "topk")).cause != "recurrent_layer"
