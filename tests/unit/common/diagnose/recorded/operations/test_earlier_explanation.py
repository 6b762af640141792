"""Tests of sentences about the tensors with which the difference of later ones begins."""

import numpy as np
import pytest

from common.diagnose.findings import Explanation
from common.diagnose.recorded.operations.differing_section import DifferingSection, find_section
from common.diagnose.recorded.operations.earlier_explanation import explain_computed
from common.diagnose.recorded.operations.earlier_tensors import EarlierTensors, find_earlier_tensors
from common.diagnose.recorded.operations.explanation import explain_operations
from common.diagnose.recorded.operations.operation_names import LOSS
from common.diagnose.recorded.operations.section_side import SectionSide
from common.diagnose.recorded.operations.tensor_matches import TensorMatches
from common.recording.operation_format import OperationTrace
from tests.unit.common.diagnose.recorded.operations.test_explanation import make_pair
from tests.unit.common.diagnose.recorded.operations.traces import Script
from tests.unit.common.recording.tensors import Tensor, to_tensor

STREAM = np.random.default_rng(11)
SCORES, OTHERS = STREAM.normal(size=(2, 8, 3))
IDS = STREAM.integers(0, 6, size=8)
FIRST, SECOND = np.array([[1.0, 0, 1, 1, 0, 1, 0, 1], [1, 0, 1, 1, 0, 1, 0, 0]])
FILE = "test_earlier_explanation.py"
OTHER_PARTS = "loss: other numbers count of the same tensor: "


def _explain(a: OperationTrace, b: OperationTrace) -> Explanation:
    explanation = explain_operations(make_pair(a, b), "loss", LOSS, LOSS)
    assert explanation is not None
    return explanation


def _take_part(script: Script, values: Tensor, mask: np.ndarray | None, is_product: bool) -> Tensor:
    """Return the mean over the positions of a mask of the script, in one of two notations; over all without one."""
    if mask is None:
        return script.call("mean", np.mean, values)
    chosen = script.name("batch/0/label/first" if mask is FIRST else "batch/0/label/second", to_tensor(mask))
    if not is_product:
        rows = np.flatnonzero(mask)
        selected = script.call("getitem", lambda x, *_, **__: np.asarray(x)[rows], values, chosen, index="[bool[8]]")
        return script.call("mean", np.mean, selected)
    column = script.call("unsqueeze", lambda x: np.asarray(x)[:, None], chosen)
    total = script.call("sum", np.sum, script.call("mul", np.multiply, values, column))
    count = script.call("Cast", lambda x: 3 * np.sum(x), chosen)
    return script.call("div", np.divide, total, count)


def _measure(mask: np.ndarray | None, is_product: bool) -> OperationTrace:
    """Return the operations of a loss that is the mean of squares, over a part of the positions."""
    script = Script(x=SCORES)
    error = script.call("sub", np.subtract, script.inputs["x"], script.name("weight/w", to_tensor(OTHERS)))
    squares = script.call("square", np.square, script.call("tanh", np.tanh, error))
    return script.finish(script.call("exp", np.exp, _take_part(script, squares, mask, is_product)))


@pytest.mark.parametrize("is_product_b", [False, True])
@pytest.mark.parametrize("is_product_a", [False, True])
def test_other_shares_of_the_same_positions_are_named(is_product_a: bool, is_product_b: bool) -> None:
    explanation = _explain(_measure(FIRST, is_product_a), _measure(SECOND, is_product_b))
    assert (explanation.cause, explanation.confirmed) == ("operation", True)
    names = ["mul" if is_product else "x[bool[8]]" for is_product in (is_product_a, is_product_b)]
    assert explanation.sentence.startswith(f"{OTHER_PARTS}5 of 8 in A ({names[0]} in {FILE}:")
    assert f", and 4 of 8 in B ({names[1]} in {FILE}:" in explanation.sentence


def test_a_part_of_positions_that_all_count_in_the_other_script_is_named() -> None:
    """A division by the number of positions comes with the part."""
    part, whole = _measure(FIRST, True), _measure(None, True)
    explanation = _explain(part, whole)
    assert explanation.sentence.startswith(f"{OTHER_PARTS}5 of 8 in A (mul in {FILE}:")
    assert explanation.sentence.endswith(", and all in B")
    assert _explain(whole, part).sentence.startswith(f"{OTHER_PARTS}all in A, and 5 of 8 in B (mul in {FILE}:")


@pytest.mark.parametrize("is_reversed", [False, True])
def test_two_notations_of_the_same_part_are_no_reason(is_reversed: bool) -> None:
    """B's function before the part is another one."""

    def compute(is_product: bool, function: str) -> OperationTrace:
        script = Script(x=SCORES)
        scaled = script.call("cumsum", lambda x: np.cumsum(x, 1), script.inputs["x"])
        values = script.call(
            function, {"exp": np.exp, "softplus": np.log1p}[function], script.call("abs", np.abs, scaled)
        )
        return script.finish(script.call("log1p", np.log1p, _take_part(script, values, FIRST, is_product)))

    explanation = _explain(compute(is_reversed, "exp"), compute(not is_reversed, "softplus"))
    assert OTHER_PARTS not in explanation.sentence
    assert f"A computes exp in {FILE}:" in explanation.sentence
    assert f", and B softplus in {FILE}:" in explanation.sentence


def _look_up(source: str | None, ids: np.ndarray = IDS) -> OperationTrace:
    """Return the operations of a loss of rows at ids, or at positions that a script computes from ids or from x."""
    script = Script(ids=ids, x=SCORES)
    rows = script.inputs["ids"]
    if source is not None:
        rows = script.call(
            "argmax", lambda x: np.argsort(np.ravel(x)[:8]) // (1 + (source == "ids")), script.inputs[source]
        )
    table = script.name("weight/table", to_tensor(OTHERS))
    taken = script.call("gather", lambda x, y: np.asarray(x)[np.asarray(y, int)], table, rows)
    return script.finish(script.call("mean", np.mean, script.call("exp", np.exp, taken)))


def _find_section(a: OperationTrace, b: OperationTrace) -> DifferingSection:
    assert a["loss"] is not None
    assert b["loss"] is not None
    section = find_section(a, b, (a["loss"], b["loss"]), TensorMatches(a["tensors"], b["tensors"], 1e-5))
    assert section is not None
    return section


def _explain_computed(a: OperationTrace, b: OperationTrace, has_users: bool = True) -> Explanation | None:
    """Explain the last tensors that the operations before exp receive."""
    users = [next(x for x in trace["operations"] if x["name"] in ("gather", "mul")) for trace in (a, b)]
    tensors = [user["inputs"][1] for user in users]
    beginning = EarlierTensors(tensors[0], tensors[1], (users[0], users[1]) if has_users else None)
    return explain_computed(_find_section(a, b).narrow(*tensors), beginning, "loss")


@pytest.mark.parametrize("name", ["A", "B"])
def test_indices_that_only_one_script_computes_are_named(name: str) -> None:
    explanation = _explain_computed(_look_up("x" if name == "A" else None), _look_up("x" if name == "B" else None))
    assert explanation is not None
    assert (explanation.cause, explanation.confirmed) == ("operation", True)
    start = f"loss: the same operation receives other indices: A computes gather in {FILE}:"
    assert explanation.sentence.startswith(start)
    assert f"; only {name} computes them, by argmax in {FILE}:" in explanation.sentence


def test_indices_of_both_scripts_or_of_no_operation_are_not_explained() -> None:
    assert _explain_computed(_look_up("x"), _look_up(None), has_users=False) is None
    assert _explain_computed(_look_up(None), _look_up(None, IDS[::-1] // 2)) is None
    assert _explain_computed(_look_up("ids", IDS // 2), _look_up("x")) is None


@pytest.mark.parametrize("sources", [("ids", None), (None, "ids")])
def test_indices_that_one_script_computes_from_those_of_the_other_one_are_not_explained(
    sources: tuple[str | None, str | None],
) -> None:
    """It only computes something more."""
    assert _explain_computed(_look_up(sources[0]), _look_up(sources[1])) is None


def _weigh(is_computed: bool) -> OperationTrace:
    script = Script(x=SCORES, y=OTHERS)
    factors = script.inputs["y"]
    if is_computed:
        factors = script.call("cumsum", lambda x: np.cumsum(x, 0), script.inputs["x"])
    product = script.call("mul", np.multiply, script.inputs["x"], factors)
    return script.finish(script.call("mean", np.mean, script.call("exp", np.exp, product)))


@pytest.mark.parametrize("is_reversed", [False, True])
def test_numbers_that_only_one_script_computes_are_another_tensor(is_reversed: bool) -> None:
    explanation = _explain_computed(_weigh(is_reversed), _weigh(not is_reversed))
    assert explanation is not None
    assert (explanation.cause, explanation.confirmed) == ("operation", False)
    start = f"loss: the same operation receives another tensor: A computes mul in {FILE}:"
    assert explanation.sentence.startswith(start)
    assert "indices" not in explanation.sentence


def _find_earlier(a: OperationTrace, b: OperationTrace) -> list[tuple[str, str]]:
    """Return the names of the operations that compute the tensors with which a difference begins; "" if none does."""
    section = _find_section(a, b)
    beginnings, _ = find_earlier_tensors(section.a, section.b, section.matches)

    def name(side: SectionSide, tensor: int) -> str:
        producer = side.find_producer(tensor)
        return "" if producer is None else producer["name"]

    return [(name(section.a, x.a), name(section.b, x.b)) for x in beginnings]


def _add(name: str, function: str) -> OperationTrace:
    script = Script(x=SCORES, y=OTHERS)
    other = script.call(function, {"tanh": np.tanh, "sin": np.sin}[function], script.inputs["y"])
    terms = [script.inputs["x"], other]
    total = script.call(name, np.add, *(terms if function == "tanh" else terms[::-1]))
    return script.finish(script.call("mean", np.mean, script.call("exp", np.exp, total)))


def test_the_only_terms_without_counterpart_are_a_pair_whatever_computes_them() -> None:
    assert _find_earlier(_add("add", "tanh"), _add("Add", "sin")) == [("tanh", "sin")]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_part_of_a_source_is_the_counterpart_of_another_function(is_reversed: bool) -> None:
    def compute(has_part: bool) -> OperationTrace:
        script = Script(x=SCORES)
        mask = script.name("batch/0/label/mask", to_tensor(FIRST[:, None]))
        x = script.inputs["x"]
        values = script.call("mul", np.multiply, x, mask) if has_part else script.call("sin", np.sin, x)
        return script.finish(script.call("mean", np.mean, script.call("exp", np.exp, values)))

    traces = [compute(True), compute(False)]
    names = ("sin", "mul") if is_reversed else ("mul", "sin")
    assert _find_earlier(*(traces[::-1] if is_reversed else traces)) == [names]


def _replace(name: str, constant: float, function: str) -> OperationTrace:
    """Return the operations of a loss after a choice, written in the order of PyTorch or of TensorFlow."""
    script = Script(x=SCORES)
    values = script.call(function, {"tanh": np.tanh, "sin": np.sin}[function], script.inputs["x"])
    mask = script.name("batch/0/label/mask", to_tensor(np.broadcast_to(FIRST[:, None], (8, 3))))
    filling = script.call("fill", lambda x: np.full(x.shape, constant), mask)
    tensors = [mask, filling, values] if name == "where" else [values, mask]
    filled = script.call(name, lambda *_: np.where(np.asarray(mask) > 0, constant, np.asarray(values)), *tensors)
    trace = script.finish(script.call("mean", np.mean, script.call("exp", np.exp, filled)))
    trace["tensors"][trace["names"]["batch/0/label/mask"]]["dtype"] = "bool"
    return trace


def test_choices_have_one_form() -> None:
    """The mask and the constant come first in one script, and one of them last in the other."""
    a, b = _replace("where", -2.0, "tanh"), _replace("masked_fill", -2.0, "sin")
    assert _find_earlier(a, b) == [("tanh", "sin")]
