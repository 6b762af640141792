"""Tests of losses that one script computes in one operation, and the other script in several ones."""

import numpy as np
import pytest
from scipy.special import expit, log_softmax

from common.diagnose.findings import Explanation
from common.diagnose.recorded.operations.explanation import explain_operations
from common.diagnose.recorded.operations.joined_losses import drop_joined, join_losses
from common.diagnose.recorded.operations.operation_names import LOSS
from common.recording.operation_format import OperationTrace
from tests.unit.common.diagnose.recorded.operations.test_explanation import make_pair
from tests.unit.common.diagnose.recorded.operations.traces import Script
from tests.unit.common.recording.tensors import Tensor, to_tensor

LOGITS = np.random.default_rng(0).normal(size=(8, 3))
LABELS = np.arange(24.0).reshape(8, 3) % 2


def _compute_losses(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the binary cross entropies of logits."""
    return np.asarray(np.maximum(x, 0) - x * y + np.log1p(np.exp(-np.abs(x))))


def _start(scale: float) -> tuple[Script, Tensor, Tensor]:
    script = Script(x=LOGITS, y=LABELS)
    x, y = script.inputs.values()
    return script, x if scale == 1 else script.call("mul", np.multiply, x, to_tensor(scale)), y


def _finish(script: Script, losses: Tensor) -> OperationTrace:
    return script.finish(script.call("mean", np.mean, losses))


def _lose_logits(name: str, scale: float = 1.0) -> OperationTrace:
    script, x, y = _start(scale)
    return _finish(script, script.call(name, _compute_losses, x, y))


def _lose_probabilities(scale: float = 1.0) -> OperationTrace:
    script, x, y = _start(scale)
    outputs = script.call("sigmoid", expit, x)
    return _finish(script, script.call("binary_cross_entropy", lambda *_: _compute_losses(x, y), outputs, y))


def _lose_in_steps(scale: float = 1.0) -> OperationTrace:
    """Return the operations of tf.nn.sigmoid_cross_entropy_with_logits."""
    script, x, y = _start(scale)
    zeros = script.call("ZerosLike", np.zeros_like, x)
    is_positive = script.call("GreaterEqual", lambda x, y: x >= y, x, zeros)
    positive = script.call("SelectV2", lambda c, x, y: np.where(c, x, y), is_positive, x, zeros)
    negative = script.call("Neg", np.negative, x)
    sizes = script.call("SelectV2", lambda c, x, y: np.where(c, x, y), is_positive, negative, x)
    difference = script.call("Sub", np.subtract, positive, script.call("Mul", np.multiply, x, y))
    logarithms = script.call("Log1p", np.log1p, script.call("Exp", np.exp, sizes))
    return _finish(script, script.call("AddV2", np.add, difference, logarithms))


def _list(trace: OperationTrace) -> list[tuple[str, list[int]]]:
    return [(x["name"], x["inputs"]) for x in trace["operations"]]


def test_the_steps_of_a_loss_of_logits_are_one_operation() -> None:
    steps, other = join_losses(_lose_in_steps(), _lose_logits("binary_cross_entropy_with_logits"))
    names = steps["names"]
    loss, mean = steps["operations"]
    assert loss["name"] == "SigmoidCrossEntropyWithLogits"
    assert loss["inputs"] == [names["batch/0/input/x"], names["batch/0/input/y"]]
    assert mean["inputs"] == loss["outputs"]
    assert len(other["operations"]) == 2


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_function_and_a_loss_are_the_operation_of_the_other_script(is_reversed: bool) -> None:
    name = "binary_cross_entropy_with_logits"
    traces = [_lose_probabilities(), _lose_logits(name)]
    joined, other = reversed(join_losses(traces[1], traces[0])) if is_reversed else join_losses(traces[0], traces[1])
    (_, logits), (loss, received), _ = _list(joined)
    assert (loss, received[:1]) == (name.replace("_", ""), logits)
    assert _list(other) == _list(traces[1])
    assert _list(join_losses(traces[0], traces[0])[0]) == _list(traces[0])


def _explain(a: OperationTrace, b: OperationTrace) -> Explanation | None:
    return explain_operations(make_pair(a, b), "loss", LOSS, LOSS)


def test_only_the_operation_before_the_loss_is_named() -> None:
    """The scripts write the loss in other ways, and only one of them scales the logits."""
    by_steps, by_function = _lose_in_steps(0.5), _lose_probabilities()
    for traces, cause in (((by_steps, by_function), "missing_operation"), ((by_function, by_steps), "added_operation")):
        explanation = _explain(*traces)
        assert explanation is not None
        assert explanation.cause == cause
        assert "mul(0.5) in test_joined_losses.py:" in explanation.sentence
        assert "sigmoid" not in explanation.sentence
    assert _explain(_lose_in_steps(), _lose_probabilities()) is None


def test_a_function_and_a_loss_have_a_counterpart_though_operations_stand_between_them() -> None:
    script = Script(x=LOGITS)
    logarithms = script.call("log_softmax", lambda x: log_softmax(x, 1), script.inputs["x"])
    moved = script.call("permute", np.transpose, logarithms)
    a = _finish(script, script.call("nll_loss", lambda x: -x[0], moved))["operations"]
    script = Script(x=LOGITS)
    b = _finish(script, script.call("cross_entropy", lambda x: -log_softmax(x, 1)[:, 0], script.inputs["x"]))
    for operations, others in ((a, b["operations"]), (b["operations"], a)):
        names = [x["name"] for x in drop_joined(operations, others)]
        assert names == (["permute", "mean"] if operations is a else ["mean"])
    assert drop_joined(a, a) == a
