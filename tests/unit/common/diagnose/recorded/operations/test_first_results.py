"""Tests of the reasons that the tensors of first operations show."""

from functools import partial

import numpy as np
import pytest

from common.diagnose.findings import Explanation
from common.diagnose.recorded.operations.explanation import explain_operations
from common.diagnose.recorded.operations.first_results import list_surplus
from common.diagnose.recorded.operations.operation_names import LOSS
from common.diagnose.recorded.operations.section_side import SectionSide
from common.recording.operation_format import OperationTrace
from tests.unit.common.diagnose.recorded.operations.test_explanation import make_pair
from tests.unit.common.diagnose.recorded.operations.traces import Script
from tests.unit.common.recording.tensors import Tensor, to_tensor

STREAM = np.random.default_rng(3)
SCORES = STREAM.normal(size=12)
EDGES = STREAM.integers(0, 5, size=(2, 12))  # the targets and the sources
VIEWS = STREAM.normal(size=(4, 6, 3))
FUNCTIONS = {"mul": np.multiply, "add": np.add}
LOG_PROBABILITIES, ACTIONS = STREAM.normal(size=(6, 3)), STREAM.integers(0, 3, size=6)


def _explain(a: OperationTrace, b: OperationTrace) -> Explanation:
    explanation = explain_operations(make_pair(a, b), "loss", LOSS, LOSS)
    assert explanation is not None
    return explanation


def _sum_squares(script: Script, x: Tensor) -> OperationTrace:
    return script.finish(script.call("sum", np.sum, script.call("square", np.square, x)))


def _sum_edges(end: int, is_added_to_zeros: bool, scale: float = 1) -> OperationTrace:
    """Return the operations of sums of scores over the edges of a graph, in the manner of PyTorch or TensorFlow."""
    script = Script(scores=SCORES * scale)
    scores = script.inputs["scores"]
    index = [script.name(f"batch/0/label/{x}", to_tensor(EDGES[x])) for x in range(2)][end]

    def sum_edges(scores: Tensor, index: Tensor) -> np.ndarray:
        return np.bincount(np.asarray(index), np.asarray(scores), 5)

    if is_added_to_zeros:
        zeros = script.call("zeros", lambda: np.zeros(5))
        sums = script.call("index_add", lambda _, index, x: sum_edges(x, index), zeros, index, scores)
    else:
        sums = script.call("UnsortedSegmentSum", sum_edges, scores, index)
    return _sum_squares(script, sums)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_sums_over_other_indices_are_named(is_reversed: bool) -> None:
    traces = _sum_edges(0, is_added_to_zeros=False), _sum_edges(1, is_added_to_zeros=True)
    explanation = _explain(*(traces[::-1] if is_reversed else traces))
    assert (explanation.cause, explanation.confirmed) == ("operation", True)
    assert explanation.sentence.startswith("loss: for the same numbers and other indices, A computes ")
    assert "UnsortedSegmentSum" in explanation.sentence
    assert "index_add" in explanation.sentence
    assert "square" not in explanation.sentence


def test_sums_of_other_numbers_are_not_blamed_on_the_indices() -> None:
    a = _sum_edges(0, is_added_to_zeros=False)
    assert "indices" not in _explain(a, _sum_edges(0, is_added_to_zeros=True, scale=2)).sentence


def _average_actions(is_selected: bool) -> OperationTrace:
    """Return the operations of a loss of the probabilities of actions, selected or multiplied by zeros and ones."""
    script = Script(x=LOG_PROBABILITIES, actions=ACTIONS)
    x, actions = script.inputs.values()
    if is_selected:
        chosen = script.call("gather", lambda x, i: np.asarray(x)[np.arange(6), np.asarray(i)], x, actions)
    else:
        marks = script.call("OneHot", lambda i: np.eye(3)[np.asarray(i)], actions)
        product = script.call("Mul", np.multiply, marks, x)
        chosen = script.call("Mean", partial(np.mean, axis=1), product)
    return _sum_squares(script, script.call("exp", np.exp, chosen))


@pytest.mark.parametrize("is_reversed", [False, True])
def test_mean_in_place_of_a_selection_is_named(is_reversed: bool) -> None:
    traces = _average_actions(is_selected=True), _average_actions(is_selected=False)
    explanation = _explain(*(traces[::-1] if is_reversed else traces))
    name = "A" if is_reversed else "B"
    assert explanation.sentence.endswith(f": only {name} divides by 3, the number of elements of its mean")
    assert "exp" not in explanation.sentence


def test_mean_that_both_compute_is_not_named() -> None:
    """Only B squares what the exponentials of the means are."""
    script = Script(x=LOG_PROBABILITIES, actions=ACTIONS)
    means = script.call("mean", partial(np.mean, axis=1), script.inputs["x"])
    a = script.finish(script.call("sum", np.sum, script.call("exp", np.exp, means)))
    script = Script(x=LOG_PROBABILITIES, actions=ACTIONS)
    means = script.call("mean", partial(np.mean, axis=1), script.inputs["x"])
    assert "divides" not in _explain(a, _sum_squares(script, script.call("exp", np.exp, means))).sentence


def _compare_views(pairs: tuple[str, str], name: str) -> OperationTrace:
    """Return the operations of a loss that compares two pairs of views, by one function or by products or sums."""
    script = Script(p1=VIEWS[0], p2=VIEWS[1], z1=VIEWS[2], z2=VIEWS[3])
    terms = []
    for pair in pairs:
        views = [script.inputs[view] for view in pair.split()]
        if name == "compare":
            compared = script.call("compare", lambda x, y: np.tanh(x) * np.tanh(y), *views)
        else:
            compared = script.call(name, FUNCTIONS[name], *(script.call("tanh", np.tanh, view) for view in views))
        terms.append(script.call("exp", np.exp, compared))
    return script.finish(script.call("mean", np.mean, script.call("add", np.add, *terms)))


def test_other_pairs_of_tensors_are_named() -> None:
    explanation = _explain(_compare_views(("p1 z2", "p2 z1"), "compare"), _compare_views(("p1 z1", "p2 z2"), "mul"))
    assert not explanation.confirmed
    prefix, _, rest = explanation.sentence.partition("A computes compare in ")
    assert prefix == "loss: the same tensors are combined in other pairs: "
    assert ", and B mul in " in rest


def test_equal_pairs_and_parts_of_one_sum_are_not_named() -> None:
    """B's pairs are A's in another order, or other parts of one sum."""
    explanation = _explain(_compare_views(("p1 z2", "p2 z1"), "mul"), _compare_views(("z1 p2", "z2 p1"), "add"))
    assert "other pairs" not in explanation.sentence
    explanation = _explain(_compare_views(("p1 z2", "p2 z1"), "add"), _compare_views(("p1 z1", "p2 z2"), "add"))
    assert "other pairs" not in explanation.sentence


def test_second_softmax_is_named() -> None:
    """PyTorch's distributions subtract the logarithm of the sum of the exponentials."""
    a = Script(x=LOG_PROBABILITIES)
    logs = a.call("LogSoftmax", lambda x: x - _sum_exponentials(x), a.inputs["x"])
    b = Script(x=LOG_PROBABILITIES)
    powers = b.call("softmax", lambda x: np.exp(x - _sum_exponentials(x)), b.inputs["x"])
    normalized = b.call("sub", np.subtract, powers, b.call("logsumexp", _sum_exponentials, powers))
    explanation = _explain(_sum_squares(a, logs), _sum_squares(b, normalized))
    assert (explanation.cause, explanation.confirmed) == ("added_operation", True)
    assert explanation.sentence.startswith("loss: B also computes softmax in ")
    assert "logsumexp" not in explanation.sentence


def _sum_exponentials(x: Tensor) -> np.ndarray:
    return np.log(np.exp(np.asarray(x)).sum(axis=1, keepdims=True))


def _attend(is_masked: bool, name: str = "softmax") -> OperationTrace:
    """Return the operations of scores. With a mask, which a cast makes, they also change their shape."""
    script = Script(scores=SCORES.reshape(3, 4), mask=np.arange(12.0).reshape(3, 4) % 2)
    scores, mask = script.inputs.values()
    used = script.call("amax", np.max, mask)  # by both
    if is_masked:
        cast = script.call("cast", lambda x: np.asarray(x) * -9.0, mask)
        scores = script.call("add", np.add, scores, script.call("expand", np.copy, cast))
        scores = script.call("reshape", np.ravel, scores)
    powers = script.call(name, lambda x: np.exp(np.asarray(x)), scores)
    return script.finish(script.call("sub", np.subtract, script.call("sum", np.sum, powers), used))


@pytest.mark.parametrize("is_reversed", [False, True])
def test_addition_of_what_only_one_script_computes_is_named(is_reversed: bool) -> None:
    traces = _attend(is_masked=True), _attend(is_masked=False)
    explanation = _explain(*(traces[::-1] if is_reversed else traces))
    words = "B also computes add in" if is_reversed else "B does not compute add in"
    assert explanation.confirmed
    assert explanation.sentence.startswith(f"loss: {words}")
    assert explanation.sentence.count("`") == 2  # one line


def test_operation_before_another_one_of_another_name_is_not_named_alone() -> None:
    """The following operations have other names, and receive one equal tensor: they may be the difference."""
    explanation = _explain(_attend(is_masked=True), _attend(is_masked=False, name="sparsemax"))
    assert explanation.cause == "operation"
    assert "B sparsemax" in explanation.sentence


@pytest.mark.parametrize("loss", ["mse_loss", "SquaredDifference"])
def test_term_before_a_loss_of_another_notation_is_named(loss: str) -> None:
    def add(has_background: bool, name: str) -> OperationTrace:
        script = Script(colors=VIEWS[0], background=VIEWS[1], target=VIEWS[2])
        colors, background, target = script.inputs.values()
        used = script.call("amax", np.max, background)  # by both
        if has_background:
            colors = script.call("add", np.add, colors, background)
        errors = script.call(name, lambda x, y: (x - y) ** 2, colors, target)
        return script.finish(script.call("sub", np.subtract, script.call("mean", np.mean, errors), used))

    explanation = _explain(add(has_background=False, name="mse_loss"), add(has_background=True, name=loss))
    assert (explanation.cause, explanation.confirmed) == ("added_operation", True)
    assert "B also computes add in" in explanation.sentence


def test_mask_is_named_though_a_function_of_the_framework_selects_finite_numbers() -> None:
    """TensorFlow lists the operations of a sum of exponentials, and PyTorch one function."""
    script = Script(x=LOG_PROBABILITIES, mask=LOG_PROBABILITIES > 0)
    x, mask = script.inputs.values()
    masked = script.call("masked_fill", lambda x, mask: np.where(mask, -9.0, x), x, mask)
    scaled = script.call("div", lambda x: x / 0.5, masked)
    a = script.finish(script.call("logsumexp", lambda x: np.log(np.exp(x).sum()), scaled))
    script = Script(x=LOG_PROBABILITIES, mask=LOG_PROBABILITIES > 0)
    scaled = script.call("RealDiv", lambda x: x / 0.5, script.inputs["x"])
    largest = script.call("Max", np.max, scaled)
    selected = script.call("SelectV2", lambda finite, x: x, script.call("IsFinite", np.isfinite, largest), largest)
    used = script.call("amax", np.max, script.inputs["mask"])
    exponentials = script.call("Exp", lambda x, largest, _: np.exp(x - largest), scaled, selected, used)
    b = script.finish(script.call("Log", lambda x: np.log(x.sum()), exponentials))
    explanation = _explain(a, b)
    assert (explanation.cause, explanation.confirmed) == ("missing_operation", True)
    assert "B does not compute masked_fill in" in explanation.sentence


def test_selections_by_several_masks_are_no_surplus_over_one_choice() -> None:
    """The other script may choose by "where" once what a script selects by two masks."""
    sides = []
    for count in (1, 2):
        script = Script(x=LOG_PROBABILITIES)
        x = script.inputs["x"]
        index = {} if count == 1 else {"index": "[bool[6, 3]]"}
        parts = [script.call("getitem" if index else "where", lambda x, **_: x + 1, x, **index) for _ in range(count)]
        trace = script.finish(script.call("sum", lambda *x: np.sum(x), script.call("exp", np.exp, parts[0]), *parts))
        assert trace["loss"] is not None
        sides.append(SectionSide(trace, trace["loss"], ()))
    once, twice = sides
    assert list_surplus(twice.operations, twice, once) == []
    nothing = SectionSide(Script(x=LOG_PROBABILITIES).finish(to_tensor(1.0)), 0, ())
    assert [x["name"] for x in list_surplus(twice.operations, twice, nothing)] == ["getitem", "getitem", "exp", "sum"]
