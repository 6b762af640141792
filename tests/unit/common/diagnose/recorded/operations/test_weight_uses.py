"""Tests of weights that two scripts use in other operations."""

from collections.abc import Sequence

import numpy as np
import pytest

from common.diagnose.recorded.operations.explanation import explain_operations
from common.diagnose.recorded.operations.operation_names import LOSS
from common.diagnose.recorded.operations.weight_uses import describe_shared_weights, explain_weight_uses
from common.recording.operation_format import OperationTrace
from tests.unit.common.diagnose.recorded.operations.test_explanation import make_pair
from tests.unit.common.diagnose.recorded.operations.traces import Script
from tests.unit.common.recording.tensors import to_tensor

STREAM = np.random.default_rng(0)
INPUTS = STREAM.normal(size=(8, 3))
WEIGHTS = dict(zip(("first", "second", "third"), STREAM.normal(size=(3, 3, 3)), strict=True))


def _apply(names: str, scale: bool | None = None) -> OperationTrace:
    """Return the operations of layers, by the names of their weights. scale: whether a weight or 1 is a factor."""
    script = Script(x=INPUTS)
    weights = {name: script.name(f"weight/{name}", to_tensor(array)) for name, array in WEIGHTS.items()}
    x = script.inputs["x"]
    for name in names.split():
        x = script.call("linear", np.matmul, x, weights[name])
    if scale is not None:
        one = script.name("weight/scale", to_tensor(1.0))
        x = script.call("mul", np.multiply, x, one)
        x = script.call("div", np.divide, x, one if scale else to_tensor(1.0))
    return script.finish(script.call("mean", np.mean, x))


def test_operations_that_use_a_weight_more_often_are_named() -> None:
    """One script divides by the weight, and the other script by the number 1, which the weight is."""
    explanation = explain_weight_uses(make_pair(_apply("first", True), _apply("first", False)), "scale")
    assert explanation is not None
    assert (explanation.cause, explanation.confirmed) == ("gradient", True)
    words = explanation.sentence.split(" and in ")
    assert words[0].startswith("it is used in 2 operations of A (mul in test_weight_uses.py:")
    assert "div in test_weight_uses.py:" in words[0]
    assert words[1].startswith("1 operation of B (mul in test_weight_uses.py:")


@pytest.mark.parametrize("title", ["scale", "first", "second", "unknown"])
def test_weights_that_both_scripts_use_equally_often_are_not_named(title: str) -> None:
    assert explain_weight_uses(make_pair(_apply("first", True), _apply("first", True)), title) is None


@pytest.mark.parametrize(
    ("names", "side", "lacks_uses", "expected"),
    [
        (("first first third", "first second third"), "a", False, "A uses first 2 times, and the other script 1"),
        (("first first third", "first second third"), "a", True, "A uses first 2 times, and the other script 1"),
        (("first second third", "first first third"), "b", True, "B uses first 2 times, and the other script 1"),
        (("first first third", "first second third"), "b", False, ""),
        (("first first", "first"), "a", False, "A uses first 2 times, and the other script 1"),
        (("first first", "first"), "a", True, ""),  # a loop uses a layer more often than one call does
        (("first second", "second first"), "a", False, ""),
    ],
)
def test_a_layer_in_the_place_of_another_one_is_described(
    names: tuple[str, str], side: str, lacks_uses: bool, expected: str
) -> None:
    pair = make_pair(_apply(names[0]), _apply(names[1]))
    assert describe_shared_weights(pair, side, lacks_uses=lacks_uses) == expected
    pair.sides[1].record.ranks[0].operations = None
    assert describe_shared_weights(pair, side, lacks_uses=lacks_uses) == ""


def _explain(names: Sequence[str]) -> tuple[str, str]:
    explanation = explain_operations(make_pair(_apply(names[0]), _apply(names[1])), "loss", LOSS, LOSS)
    assert explanation is not None
    return explanation.cause, explanation.sentence


def test_an_operation_that_receives_another_weight_is_named() -> None:
    cause, sentence = _explain(["first second", "first third"])
    assert (cause, sentence) == ("operation", "loss: matmul of other weights: second in A and third in B")
    assert "other weights" not in _explain(["first second", "first second third"])[1]
