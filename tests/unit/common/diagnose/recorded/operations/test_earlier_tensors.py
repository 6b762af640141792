"""Tests of the tensors with which the difference of later ones begins."""

from collections.abc import Callable

import numpy as np
import pytest

from common.diagnose.findings import Explanation
from common.diagnose.recorded.operations.earlier_tensors import find_earlier_tensors
from common.diagnose.recorded.operations.explanation import explain_operations
from common.diagnose.recorded.operations.operation_names import LOSS
from common.diagnose.recorded.operations.section_side import SectionSide
from common.diagnose.recorded.operations.tensor_matches import TensorMatches
from common.recording.operation_format import OperationTrace
from tests.unit.common.diagnose.recorded.operations.test_explanation import make_pair
from tests.unit.common.diagnose.recorded.operations.traces import Script
from tests.unit.common.recording.tensors import Tensor, to_tensor

STREAM = np.random.default_rng(7)
ACTIONS, SCORES = STREAM.uniform(0.1, 0.9, size=(2, 8, 3))
TARGETS = STREAM.normal(size=(2, 8, 1))


def _explain(a: OperationTrace, b: OperationTrace) -> Explanation:
    explanation = explain_operations(make_pair(a, b), "loss", LOSS, LOSS)
    assert explanation is not None
    return explanation


def _finish(script: Script, penalty: Tensor, weights: np.ndarray, is_reversed: bool) -> OperationTrace:
    """Return mean(penalty - scores @ weights): the weights are those of another model, which is not recorded."""
    product = script.call("matmul", np.matmul, script.inputs["scores"], to_tensor(weights))
    values = script.call("relu", lambda x: np.maximum(x, 0.1), product)
    if is_reversed:
        difference = script.call("Sub", np.subtract, values, penalty)
        return script.finish(script.call("Neg", np.negative, script.call("Mean", np.mean, difference)))
    return script.finish(script.call("mean", np.mean, script.call("sub", np.subtract, penalty, values)))


def _compute_policy(scale: float | None, weights: np.ndarray, is_reversed: bool = False) -> OperationTrace:
    script = Script(actions=ACTIONS, scores=SCORES)
    squares = script.call("square", np.square, script.inputs["actions"])
    density = squares if scale is None else script.call("mul", lambda x: scale * np.asarray(x), squares)
    logarithm = script.call("log", np.log, density)
    total = script.call("sum", lambda x: np.sum(x, 1, keepdims=True), logarithm)
    return _finish(script, total, weights, is_reversed)


def test_the_first_of_several_differences_is_named_though_the_scripts_order_their_terms_differently() -> None:
    """The weights of the other model differ as well, because its optimizer has changed them."""
    weights, others = STREAM.normal(size=(2, 3, 1))
    explanation = _explain(_compute_policy(2.0, weights, is_reversed=True), _compute_policy(None, others))
    assert (explanation.cause, explanation.confirmed) == ("missing_operation", True)
    assert explanation.sentence.startswith("loss: B does not compute mul in test_earlier_tensors.py:")


def test_weights_of_another_model_are_named_behind_other_notations() -> None:
    weights, others = STREAM.normal(size=(2, 3, 1))
    explanation = _explain(_compute_policy(None, weights), _compute_policy(None, others, is_reversed=True))
    assert (explanation.cause, explanation.confirmed) == ("other_state_of_loss", False)
    assert "a tensor [3, 1] that is not recorded has other numbers" in explanation.sentence


def _compute_error(target: np.ndarray, is_one_function: bool) -> OperationTrace:
    script = Script(actions=ACTIONS, scores=SCORES)
    outputs = script.call("getitem", lambda x, **_: x[:, :1], script.inputs["scores"], index="[:, :1]")
    received = to_tensor(target)
    if is_one_function:
        errors = script.call("mse_loss", lambda x, y: np.square(np.subtract(x, y)), outputs, received)
        return script.finish(script.call("mean", np.mean, errors))
    difference = script.call("Sub", np.subtract, outputs, received)
    return script.finish(script.call("Mean", np.mean, script.call("Square", np.square, difference)))


def test_a_target_of_another_shape_is_named_though_only_one_script_calls_a_loss_function() -> None:
    broadcast = TARGETS[0] + TARGETS[1].T
    explanation = _explain(_compute_error(TARGETS[0], True), _compute_error(broadcast, False))
    assert explanation.cause == "broadcast_in_loss"
    assert explanation.sentence.endswith("a tensor that is not recorded is [8, 1] in A and [8, 8] in B")


def _attend(mask: np.ndarray, is_infinite: bool) -> OperationTrace:
    """Return an attention whose mask is infinite or a large number, over the same scores."""
    script = Script(actions=ACTIONS, scores=SCORES, first=np.array([[1.0, 1, 0]]), second=np.array([[1.0, 0, 0]]))
    chosen = script.inputs["first" if mask[0, 1] else "second"]
    is_padding = script.call("eq", lambda x: np.equal(x, 0), chosen)
    if is_infinite:
        filled = script.call("masked_fill", lambda x, y: np.where(y, -np.inf, x), chosen, is_padding)
    else:
        filled = script.call("Mul", lambda x: -1e9 * np.asarray(x), script.call("Cast", np.float64, is_padding))
    masked = script.call("add", np.add, script.inputs["scores"], filled)
    weights = script.call("softmax", lambda x: np.exp(np.asarray(x) - np.max(x, 1, keepdims=True)), masked)
    product = script.call("mul", np.multiply, weights, script.inputs["actions"])
    return script.finish(script.call("mean", np.mean, product))


def test_another_mask_is_named_though_the_scripts_write_masks_differently() -> None:
    explanation = _explain(
        _attend(np.array([[1.0, 1, 0]]), is_infinite=False), _attend(np.array([[1.0, 0, 0]]), is_infinite=True)
    )
    assert explanation.cause == "operation"
    assert "add in test_earlier_tensors.py:" in explanation.sentence
    assert "softmax" not in explanation.sentence.partition("`")[0]


IMAGES = STREAM.normal(size=(4, 2, 4, 2, 4, 2))  # 8 x 8 pixels in windows of 2 x 2
POOLINGS: dict[str, Callable[..., object]] = {
    "max_pool2d": lambda x: np.max(x, (3, 5)),
    "avg_pool2d": lambda x: np.mean(x, (3, 5)),
}


def _pool(name: str) -> OperationTrace:
    script = Script(images=IMAGES)
    pooled = script.call(name, POOLINGS[name], script.inputs["images"])
    flat = script.call("flatten", lambda x: np.reshape(x, (4, -1)), script.call("tanh", np.tanh, pooled))
    return script.finish(script.call("mean", np.mean, script.call("exp", np.exp, flat)))


@pytest.mark.parametrize("names", [("max_pool2d", "avg_pool2d"), ("avg_pool2d", "max_pool2d")])
def test_an_average_in_place_of_a_maximum_is_named(names: tuple[str, str]) -> None:
    """An average may be the end of a chain of multiples of a tensor, but here it is the counterpart of the maximum."""
    explanation = _explain(*map(_pool, names))
    assert (explanation.cause, explanation.confirmed) == ("operation", True)
    assert explanation.sentence.startswith(f"loss: from tensors with the same numbers A computes {names[0]} in ")
    assert f", and B {names[1]} in test_earlier_tensors.py:" in explanation.sentence


def _assign(values: np.ndarray) -> OperationTrace:
    """Return the operations of a loss of an array, after an assignment of another model's numbers to a column."""
    script = Script(actions=ACTIONS, scores=SCORES)

    def assign(x: np.ndarray, column: np.ndarray, **_: object) -> np.ndarray:
        return np.concatenate([column, x[:, 1:]], 1)

    assigned = script.call("setitem", assign, script.inputs["actions"], to_tensor(values), index="[:, :1]")
    return script.finish(script.call("mean", np.mean, script.call("exp", np.exp, assigned)))


def test_an_assignment_to_elements_does_not_keep_the_numbers() -> None:
    """It receives two tensors: the numbers that it returns are not those of the first one."""
    traces = [_assign(x) for x in TARGETS]
    matches = TensorMatches(traces[0]["tensors"], traces[1]["tensors"], 1e-5)
    a, b = (
        SectionSide(trace, trace["loss"] or 0, matched) for trace, matched in zip(traces, matches.matched, strict=True)
    )
    (beginning,), _ = find_earlier_tensors(a, b, matches)
    assert beginning.users is not None
    assert [x["name"] for x in beginning.users] == ["setitem", "setitem"]
    assert a.list_shapes([beginning.a]) == b.list_shapes([beginning.b]) == [[8, 1]]
