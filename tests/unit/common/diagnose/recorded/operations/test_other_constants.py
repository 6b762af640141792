"""Tests of numbers in the code of two scripts that differ."""

import numpy as np
import pytest

from common.diagnose.findings import Explanation
from common.diagnose.recorded.operations.explanation import explain_operations
from common.diagnose.recorded.operations.operation_names import LOSS
from common.diagnose.recorded.operations.other_constants import OtherConstants, find_other_constants
from common.diagnose.recorded.operations.section_side import SectionSide
from common.diagnose.recorded.operations.tensor_matches import TensorMatches
from common.recording.operation_format import OperationTrace
from tests.unit.common.diagnose.recorded.operations.test_explanation import make_pair
from tests.unit.common.diagnose.recorded.operations.traces import Script
from tests.unit.common.recording.tensors import to_tensor

SCORES = np.random.default_rng(5).normal(size=(6, 4))


def _bound(name: str, *bounds: float, is_argument: bool = False, scale: float = 1.0) -> OperationTrace:
    """Return the operations of a loss of numbers that are limited, or that are compared with a number."""
    script = Script(x=SCORES * scale)
    x = script.inputs["x"]
    if is_argument:
        limited = script.call(name, lambda x, **_: np.clip(x, bounds[0], bounds[1]), x, min=bounds[0], max=bounds[1])
    else:
        limited = script.call(name, lambda x, *y: np.maximum(x, y[0]), x, *map(to_tensor, bounds))
    return script.finish(script.call("mean", np.mean, limited))


def _find(a: OperationTrace, b: OperationTrace) -> OtherConstants | None:
    matches = TensorMatches(a["tensors"], b["tensors"], 1e-5)
    sides = [
        SectionSide(trace, trace["loss"] or 0, matched) for trace, matched in zip((a, b), matches.matched, strict=True)
    ]
    return find_other_constants(sides[0], sides[1], matches)


def test_other_bounds_of_the_same_numbers_are_named() -> None:
    """One script has the bounds as tensors, and the other one as arguments of another function."""
    constants = _find(_bound("clamp", -0.5, 0.5, is_argument=True), _bound("Minimum", 0.25))
    assert constants is not None
    assert constants.words == "-0.5 and 0.5 in A and 0.25 in B"
    assert [x["name"] for x in (*constants.a, *constants.b)] == ["clamp", "Minimum"]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (_bound("clamp", -0.5, 0.5, is_argument=True), _bound("clamp", 0.5)),  # one may lack a bound
        (_bound("clamp", 0.5), _bound("clamp", 0.25, scale=2.0)),  # other numbers are compared
        (_bound("remainder", 0.5), _bound("remainder", 0.25)),  # no bounds
    ],
)
def test_other_numbers_are_no_bounds(a: OperationTrace, b: OperationTrace) -> None:
    assert _find(a, b) is None


def _weigh(positions: np.ndarray, function: str = "tanh", has_second: bool = False) -> OperationTrace:
    """Return the operations of a loss of numbers that are weighed by constant ones, in other notations."""
    script = Script(x=SCORES)
    activated = script.call(function, np.tanh, script.inputs["x"])
    constants = script.call("arange", lambda: positions)
    weighed = script.call("mul" if function == "tanh" else "einsum", np.multiply, activated, constants)
    others = [to_tensor(np.arange(7.0))] if has_second else []
    return script.finish(script.call("mean", lambda x, *_: np.mean(x), weighed, *others))


def test_other_constant_tensors_are_named() -> None:
    constants = _find(_weigh(np.arange(4.0)), _weigh(np.arange(1.0, 5), "erf"))
    assert constants is not None
    assert constants.words == "numbers from 0 to 3 in A and from 1 to 4 in B"
    assert [x["name"] for x in (*constants.a, *constants.b)] == ["mul", "einsum"]


def test_constant_tensors_are_compared_only_if_each_script_has_a_single_one_of_one_size() -> None:
    assert _find(_weigh(np.arange(4.0)), _weigh(np.arange(1.0, 5), "erf", has_second=True)) is None
    assert _find(_weigh(np.arange(4.0)), _weigh(np.arange(6.0)[:, None], "erf")) is None


def test_other_constants_are_an_explanation() -> None:
    """The scripts give other names to the operations before and after the bound."""

    def limit(bound: float, names: tuple[str, str]) -> OperationTrace:
        script = Script(x=SCORES, y=SCORES**2)
        x, y = script.inputs.values()
        mask = script.call(names[0], lambda x, y: np.greater(x, y), x, to_tensor(bound))
        products = script.call(names[1], lambda x, y: np.multiply(np.exp(x), y), mask, y)
        return script.finish(script.call("mean", np.mean, products))

    traces = limit(0.3, ("gt", "mul")), limit(0.1, ("GreaterEqual", "einsum"))
    explanation: Explanation | None = explain_operations(make_pair(*traces), "loss", LOSS, LOSS)
    assert explanation is not None
    assert (explanation.cause, explanation.confirmed) == ("operation", True)
    assert explanation.sentence.startswith("loss: other constants, 0.3 in A and 0.1 in B: A computes gt(0.3) in ")
    assert ", and B GreaterEqual(0.1) in test_other_constants.py:" in explanation.sentence
