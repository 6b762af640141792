"""Tests of lines that compute other numbers from equal tensors, of other selections, and of repeated probabilities."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from common.diagnose.findings import Explanation
from common.diagnose.recorded.operations.differing_section import find_section
from common.diagnose.recorded.operations.explanation import explain_operations
from common.diagnose.recorded.operations.first_lines import find_other_lines
from common.diagnose.recorded.operations.operation_names import LOSS, normalize_name
from common.diagnose.recorded.operations.tensor_matches import TensorMatches
from common.recording.operation_format import OperationTrace
from tests.unit.common.diagnose.recorded.operations.test_explanation import make_pair
from tests.unit.common.diagnose.recorded.operations.traces import Script
from tests.unit.common.recording.tensors import Tensor, to_tensor

STREAM = np.random.default_rng(5)
X, Y = STREAM.normal(size=(2, 6, 4))
ROWS = np.array([5, 0, 3])
LABELS = STREAM.integers(0, 4, size=6)


def _explain(a: OperationTrace, b: OperationTrace, is_reversed: bool = False) -> Explanation:
    traces = (b, a) if is_reversed else (a, b)
    explanation = explain_operations(make_pair(*traces), "loss", LOSS, LOSS)
    assert explanation is not None
    return explanation


def _finish(script: Script, x: Tensor, y: Tensor) -> OperationTrace:
    product = script.call("mul", np.multiply, x, y)
    return script.finish(script.call("sum", np.sum, script.call("square", np.square, product)))


def _normalize(x: Tensor, axes: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(x)
    return array / np.sqrt(np.square(array).sum(axes, keepdims=True))


def _normalize_in_one(axes: tuple[int, ...]) -> OperationTrace:
    script = Script(x=X, y=Y)
    x, y = script.inputs.values()
    return _finish(script, script.call("normalize", partial(_normalize, axes=axes), x), y)


def _normalize_in_parts(axes: tuple[int, ...]) -> OperationTrace:
    script = Script(x=X, y=Y)
    x, y = script.inputs.values()

    def call(name: str, function: Callable[..., object], *tensors: Tensor) -> Tensor:
        return script.call(name, function, *tensors)  # all parts have this line

    total = call("Sum", partial(np.sum, axis=axes, keepdims=True), call("Square", np.square, x))
    scaled = call("Mul", np.multiply, x, call("Rsqrt", lambda a: 1 / np.sqrt(np.asarray(a)), total))
    return _finish(script, scaled, y)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_normalization_over_other_axes_is_named_with_its_line(is_reversed: bool) -> None:
    """The parts have names that occur elsewhere in the loss, too."""
    explanation = _explain(_normalize_in_one((1,)), _normalize_in_parts((0, 1)), is_reversed)
    assert (explanation.cause, explanation.confirmed) == ("operation", True)
    assert explanation.sentence.startswith("loss: from tensors with the same numbers A computes ")
    assert "normalize in test_first_lines.py" in explanation.sentence
    assert "Square, Sum, Rsqrt, Mul in test_first_lines.py" in explanation.sentence


def test_lines_are_not_named_if_the_remaining_operations_differ() -> None:
    """The scripts may share out a formula to their lines in different ways."""
    a, script = _normalize_in_one((1,)), Script(x=X, y=Y)
    x, y = script.inputs.values()
    scaled = script.call("normalize", partial(_normalize, axes=(0, 1)), x)
    for is_same in (True, False):
        b = _finish(script, scaled if is_same else script.call("exp", np.exp, scaled), y)
        assert a["loss"] is not None
        assert b["loss"] is not None
        matches = TensorMatches(a["tensors"], b["tensors"], 1e-5)
        section = find_section(a, b, (a["loss"], b["loss"]), matches)
        assert section is not None
        assert (find_other_lines(section.a, section.b, matches) is not None) == is_same


def _select(rows: slice | np.ndarray) -> OperationTrace:
    index = "[int64[3]]" if isinstance(rows, np.ndarray) else f"[:{rows.stop}]"
    script = Script(x=X)
    indices = [script.name("batch/0/label/rows", to_tensor(ROWS))] if isinstance(rows, np.ndarray) else []
    chosen = script.call("getitem", lambda x, *_, index: np.asarray(x)[rows], script.inputs["x"], *indices, index=index)
    return script.finish(script.call("mean", np.mean, script.call("square", np.square, chosen)))


@pytest.mark.parametrize("is_reversed", [False, True])
def test_other_rows_are_named(is_reversed: bool) -> None:
    explanation = _explain(_select(ROWS), _select(slice(3)), is_reversed)
    assert (explanation.cause, explanation.confirmed) == ("operation", True)
    assert "x[int64[3]] in" in explanation.sentence
    assert "x[:3] in" in explanation.sentence
    assert "square" not in explanation.sentence


def _compute_cross_entropy(name: str, is_repeated: bool, uses_probabilities: bool = True) -> OperationTrace:
    script = Script(logits=X, labels=LABELS)
    logits, labels = script.inputs.values()
    received = logits
    if uses_probabilities:
        received = script.call("softmax", lambda x: softmax(np.asarray(x), 1), logits)
        script.call("argmax", lambda x: np.argmax(np.asarray(x), 1), received)
    received = received if is_repeated else logits
    losses = script.call(
        name, lambda x, y: -log_softmax(np.asarray(x), 1)[np.arange(6), np.asarray(y)], received, labels
    )
    return script.finish(script.call("mean", np.mean, losses))


@pytest.mark.parametrize("uses_probabilities", [False, True])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_softmax_before_a_loss_of_logits_is_named(is_reversed: bool, uses_probabilities: bool) -> None:
    """A computes the probabilities too, if only for a metric."""
    a = _compute_cross_entropy("SparseSoftmaxCrossEntropyWithLogits", False, uses_probabilities)
    explanation = _explain(a, _compute_cross_entropy("cross_entropy", True), is_reversed)
    assert explanation.cause == ("missing_operation" if is_reversed else "added_operation")
    assert explanation.confirmed
    assert "softmax in test_first_lines.py" in explanation.sentence


@pytest.mark.parametrize(
    ("name", "other"), [("MaxPool2d", "MaxPooling2D"), ("AvgPool1d", "AveragePooling1D"), ("max_pool3d", "MaxPool3d")]
)
def test_poolings_have_one_name(name: str, other: str) -> None:
    operations = _select(ROWS)["operations"]
    assert normalize_name(operations[1] | {"name": name}) == normalize_name(operations[1] | {"name": other})


@pytest.mark.parametrize("is_reversed", [False, True])
def test_probabilities_that_nll_loss_receives_are_named(is_reversed: bool) -> None:
    script = Script(logits=X, labels=LABELS)
    logits, labels = script.inputs.values()
    probabilities = script.call("softmax", lambda x: softmax(np.asarray(x), 1), logits)
    losses = script.call("nll_loss", lambda x, y: -np.asarray(x)[np.arange(6), np.asarray(y)], probabilities, labels)
    b = script.finish(script.call("mean", np.mean, losses))
    explanation = _explain(_compute_cross_entropy("SparseSoftmaxCrossEntropyWithLogits", False), b, is_reversed)
    assert (explanation.cause, explanation.side) == ("operation", "a" if is_reversed else "b")
    assert f"{'A' if is_reversed else 'B'} passes the result of softmax in" in explanation.sentence
