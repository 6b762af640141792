"""Tests of the functions, operands and factors that two scripts apply to the same tensors."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import expit, softmax

from common.diagnose.recorded.operations.explanation import explain_operations
from common.diagnose.recorded.operations.operation_names import LOSS
from common.recording.operation_format import OperationTrace
from tests.unit.common.diagnose.recorded.operations.test_explanation import make_pair
from tests.unit.common.diagnose.recorded.operations.traces import Script
from tests.unit.common.recording.tensors import Tensor, to_tensor

ARRAYS = np.random.default_rng(11).normal(size=(3, 4, 6))


def _explain(a: OperationTrace, b: OperationTrace) -> str:
    explanation = explain_operations(make_pair(a, b), "loss", LOSS, LOSS)
    assert explanation is not None
    return explanation.sentence


def _make_script() -> tuple[Script, dict[str, Tensor]]:
    """Return a script, and three tensors that it computes from its input."""
    script = Script(arrays=ARRAYS)
    arrays = script.inputs["arrays"]
    return script, {name: script.call("tanh", lambda x, i=i: np.tanh(x[i]), arrays) for i, name in enumerate("xyz")}


def _finish(script: Script, tensor: Tensor) -> OperationTrace:
    return script.finish(script.call("mean", np.mean, script.call("exp", np.exp, tensor)))


def _multiply(operands: str, is_squared: bool = False) -> OperationTrace:
    """Return the operations of a product of inputs, from the left, such as "x y" or "y z x"."""
    script, tensors = _make_script()
    first, *others = (tensors[name] for name in operands.split())
    for other in others:
        first = script.call("mul", np.multiply, first, other)
    return _finish(script, script.call("square", np.square, first) if is_squared else first)


def test_other_operand_is_named() -> None:
    sentence = _explain(_multiply("x y"), _multiply("x z"))
    assert sentence.startswith("loss: the same operation receives another tensor: A computes mul in ")


def test_products_in_another_order_are_not_blamed() -> None:
    """Only B squares the product."""
    assert "another one" not in _explain(_multiply("x y z"), _multiply("y z x", is_squared=True))


def _scale(factor: float, name: str, limit: float | None = None, divisor: float | None = None) -> OperationTrace:
    """Return the operations of numbers that are multiplied, and then perhaps clipped and divided."""
    script, tensors = _make_script()
    scaled = script.call(name, lambda x: x * factor, tensors["x"])
    if limit is not None:
        scaled = script.call("clamp", np.maximum, scaled, to_tensor(limit))
    if divisor is not None:
        scaled = script.call("div", np.divide, scaled, to_tensor(divisor))
    return _finish(script, script.call("cumsum", np.cumsum, scaled))


@pytest.mark.parametrize("factor", [3.0, 0.125])
def test_factor_is_named(factor: float) -> None:
    sentence = _explain(_scale(1.5, "first"), _scale(1.5 * factor, "second"))
    assert sentence.endswith(f": B's numbers are {factor:g} times A's")
    assert "A computes first in " in sentence
    assert ", and B second in " in sentence
    assert "exp" not in sentence


def test_factor_that_is_taken_back_is_not_named() -> None:
    """The scripts clip at other limits."""
    sentence = _explain(_scale(1.5, "first", limit=-1), _scale(4.5, "first", limit=-1, divisor=3.0))
    assert "times" not in sentence


def _pad(x: np.ndarray) -> np.ndarray:
    return np.pad(x, ((0, 0), (1, 0)))


APPLIED: dict[str, Callable[..., np.ndarray]] = {"relu": lambda x: np.maximum(x, 0), "exp": np.exp, "pad": _pad}


def _activate(names: str) -> OperationTrace:
    """Return the operations of functions that are applied one after the other to one of two summands."""
    script, tensors = _make_script()
    x = tensors["x"]
    for name in names.split():
        x = script.call(name, APPLIED[name], x)
    return _finish(script, script.call("mul", np.multiply, x, _pad(tensors["y"]).view(Tensor)))


@pytest.mark.parametrize("is_reversed", [False, True])
def test_activation_that_one_side_does_not_apply_is_named(is_reversed: bool) -> None:
    traces = [_activate("relu pad exp"), _activate("pad exp")]
    sentence = _explain(*(reversed(traces) if is_reversed else traces))
    assert sentence.startswith(f"loss: B {'also computes' if is_reversed else 'does not compute'} relu in ")
    assert "; and" not in sentence


def test_activation_at_another_place_is_not_called_omitted() -> None:
    assert "does not compute" not in _explain(_activate("relu pad exp"), _activate("pad exp relu"))


def _lose(function: str, loss: str | None) -> OperationTrace:
    """Return the operations of a loss of a model that ends in a function. loss: a loss function; None: other code."""
    script = _make_script()[0]
    logits, targets = script.inputs["arrays"], to_tensor(ARRAYS > 0)
    apply = {"softmax": lambda x: softmax(np.asarray(x), -1), "sigmoid": lambda x: expit(np.asarray(x))}[function]
    probabilities = script.call(function, apply, logits)
    if loss is not None:
        return script.finish(script.call(loss, lambda x, y: -np.mean(y * np.log(apply(x))), probabilities, targets))
    product = script.call("mul", np.multiply, probabilities, targets)
    logarithms = script.call("log", lambda x: np.log(x + 1), product)
    return script.finish(script.call("neg", np.negative, script.call("mean", np.mean, logarithms)))


@pytest.mark.parametrize(
    ("function", "loss"),
    [
        ("softmax", "cross_entropy"),
        ("softmax", "SparseSoftmaxCrossEntropyWithLogits"),
        ("sigmoid", "binary_cross_entropy_with_logits"),
    ],
)
@pytest.mark.parametrize("side", ["A", "B"])
def test_probabilities_of_a_model_that_a_loss_takes_for_logits_are_named(function: str, loss: str, side: str) -> None:
    """Both models return probabilities, so that the difference begins at the loss."""
    traces = [_lose(function, loss), _lose(function, None)]
    sentence = _explain(*(traces if side == "A" else reversed(traces)))
    assert sentence.startswith(f"loss: {side} passes the result of {function} in test_first_functions.py:")
    assert f" to {loss} in test_first_functions.py:" in sentence
    assert sentence.endswith(", which takes logits")


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_function_that_a_loss_of_logits_contains_is_not_called_omitted(is_reversed: bool) -> None:
    """Only one script computes the probabilities itself. It subtracts a number from their logarithms."""
    script = _make_script()[0]
    probabilities = script.call("sigmoid", lambda x: expit(np.asarray(x)), script.inputs["arrays"])
    logarithms = script.call("sub", np.subtract, script.call("log", np.log, probabilities), to_tensor(0.5))
    written = script.finish(script.call("neg", lambda x: -np.mean(x), logarithms))
    script = _make_script()[0]
    loss = script.call("bce_with_logits_loss", lambda x: -np.mean(np.log(expit(x))), script.inputs["arrays"])
    traces = [written, script.finish(loss)]
    sentence = _explain(*(traces[::-1] if is_reversed else traces))
    assert not sentence.startswith(("loss: B also computes sigmoid", "loss: B does not compute sigmoid"))
