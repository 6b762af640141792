"""Tests of sentences that name the first operations of two scripts that return other numbers."""

import numpy as np
import pytest

from common.diagnose.findings import Explanation
from common.diagnose.recorded.operations.explanation import explain_operations
from common.diagnose.recorded.operations.operation_names import LOSS
from common.recording.operation_format import OperationTrace
from tests.unit.common.diagnose.recorded.operations.test_explanation import make_pair
from tests.unit.common.diagnose.recorded.operations.traces import Script
from tests.unit.common.recording.tensors import to_tensor

SCORES, OTHERS = np.random.default_rng(11).normal(size=(2, 8, 3))


def _explain(a: OperationTrace, b: OperationTrace) -> Explanation:
    explanation = explain_operations(make_pair(a, b), "loss", LOSS, LOSS)
    assert explanation is not None
    return explanation


def _subtract(name: str, is_exchanged: bool) -> OperationTrace:
    script = Script(x=SCORES, y=OTHERS)
    terms = [*script.inputs.values()]
    difference = script.call(name, np.subtract, *(terms[::-1] if is_exchanged else terms))
    return script.finish(script.call("mean", np.mean, script.call("exp", np.exp, difference)))


@pytest.mark.parametrize("is_exchanged", [False, True])
def test_exchanged_operands_are_named(is_exchanged: bool) -> None:
    explanation = _explain(_subtract("sub", is_exchanged), _subtract("Sub", not is_exchanged))
    assert (explanation.cause, explanation.confirmed) == ("operation", True)
    assert explanation.sentence.startswith("loss: from tensors with the same numbers A computes sub in ")
    assert explanation.sentence.endswith(": the operands are exchanged, so that the signs are others")


def test_operands_of_other_results_are_not_exchanged() -> None:
    def divide(is_exchanged: bool) -> OperationTrace:
        script = Script(x=np.abs(SCORES) + 1, y=np.abs(OTHERS) + 1)
        terms = [*script.inputs.values()]
        ratio = script.call("div", np.divide, *(terms[::-1] if is_exchanged else terms))
        return script.finish(script.call("mean", np.mean, script.call("exp", np.exp, ratio)))

    assert "the signs are others" not in _explain(divide(False), divide(True)).sentence


def _choose(kind: str) -> OperationTrace:
    """Return the operations of a loss of the larger elements, or of elements that are chosen otherwise."""
    script = Script(x=SCORES, y=OTHERS)
    x, y = script.inputs.values()
    is_larger = script.call("gt", lambda x, y: np.greater(x, y), x, y)
    chosen = script.call("where", lambda m, x, y: np.where(m, x, y), is_larger, x, y)
    if kind == "nested":
        is_small = script.call("lt", lambda x, y: np.less(x, y), chosen, to_tensor(0.4))
        chosen = script.call("where", lambda m, x, y: np.where(m, x, y), is_small, x, chosen)
    return script.finish(script.call("mean", np.mean, script.call("exp", np.exp, chosen)))


@pytest.mark.parametrize("is_reversed", [False, True])
def test_other_choices_are_named_on_both_sides(is_reversed: bool) -> None:
    """Only one script chooses again, among elements that the other script has chosen."""
    traces = [_choose("nested"), _choose("once")]
    explanation = _explain(*(traces[::-1] if is_reversed else traces))
    assert (explanation.cause, explanation.confirmed) == ("operation", False)
    assert explanation.sentence.startswith("loss: the scripts choose other elements: A computes ")
    of_a, of_b = explanation.sentence.split(", and B ")
    nested, once = (of_b, of_a) if is_reversed else (of_a, of_b)
    assert "is_small, x, chosen)`" in nested
    assert "is_larger, x, y)`" in once


@pytest.mark.parametrize("function", ["tanh", "where"])
def test_only_choices_are_other_choices(function: str) -> None:
    """A script without any choice chooses no other elements, and neither does a function of what is chosen."""

    def compute(is_longer: bool) -> OperationTrace:
        script = Script(x=SCORES, y=OTHERS)
        x, y = script.inputs.values()
        values = script.call("add", np.add, x, y)
        if function == "tanh":
            values = script.call("where", lambda m, x: np.where(np.greater(m, 0), m, x), values, y)
        if is_longer and function == "tanh":
            values = script.call("tanh", np.tanh, values)
        elif is_longer:
            values = script.call("where", lambda m, x: np.where(np.greater(m, 0), m, x), values, y)
        return script.finish(script.call("mean", np.mean, script.call("exp", np.exp, values)))

    explanation = _explain(compute(True), compute(False))
    assert explanation.cause == "missing_operation"
    assert explanation.sentence.startswith(f"loss: B does not compute {function} in ")
