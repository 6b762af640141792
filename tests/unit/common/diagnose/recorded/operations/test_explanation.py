"""Tests of the sentences that name the first operation that two scripts compute differently."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.findings import Explanation
from common.diagnose.recorded.operations.explanation import (
    LOSS,
    add_lines,
    explain_operations,
    explain_stopped_gradients,
)
from common.recording.operation_format import OperationTrace
from tests.unit.common.diagnose.recorded.operations.traces import Script
from tests.unit.common.recording.tensors import to_tensor

LOGITS = np.random.default_rng(0).normal(size=(8, 3))
FILE = "test_explanation.py"


def make_pair(a: OperationTrace, b: OperationTrace, counts: tuple[int, int] = (8, 8)) -> Any:
    """Return records of scripts with these operations, whose first micro-batches have `counts` examples."""
    sides = [
        SimpleNamespace(
            record=SimpleNamespace(ranks=[SimpleNamespace(operations=trace)]),
            batches=SimpleNamespace(count_examples=lambda step, count=count: [count]),
        )
        for trace, count in zip((a, b), counts, strict=True)
    ]
    orders = {1: np.random.default_rng(1).permutation(max(counts))}
    return SimpleNamespace(sides=sides, equal_steps=[1], orders=orders, noise=1e-7, precision="float32")


def _mean(script: Script, scale: float | None = None, is_stopped: bool = False, name: str = "mean") -> OperationTrace:
    x = script.inputs["logits"]
    squares = script.call("mul", np.multiply, x, x)
    if is_stopped:
        script.call("detach", np.copy, script.call("amax", np.max, squares))  # a number that the script prints
        squares = script.call("detach", np.copy, squares)
    scaled = squares if scale is None else script.call("mul", np.multiply, squares, to_tensor(scale))
    return script.finish(script.call(name, np.mean if name == "mean" else np.sum, scaled))


def _explain(a: OperationTrace, b: OperationTrace) -> Explanation | None:
    return explain_operations(make_pair(a, b), "loss", LOSS, LOSS)


def _script() -> Script:
    return Script(logits=LOGITS)


def test_operations_are_named_with_their_lines() -> None:
    explanation = _explain(_mean(_script()), _mean(_script(), name="sum"))
    assert explanation is not None
    assert (explanation.cause, explanation.confirmed) == ("operation", True)
    place, _, rest = explanation.sentence.partition(": from tensors with the same numbers A computes mean in ")
    a, _, b = rest.partition(", and B sum in ")
    assert place == "loss"
    assert a.startswith(f"{FILE}:")
    assert b.startswith(f"{FILE}:")
    assert "`return script.finish(" in a


@pytest.mark.parametrize("is_added", [True, False])
def test_operations_without_counterpart(is_added: bool) -> None:
    with_scale, without = _mean(_script(), scale=3.0), _mean(_script())
    explanation = _explain(*((without, with_scale) if is_added else (with_scale, without)))
    assert explanation is not None
    words = "loss: B also computes mul(3) in " if is_added else "loss: B does not compute mul(3) in "
    assert explanation.cause == ("added_operation" if is_added else "missing_operation")
    assert explanation.sentence.startswith(f"{words}{FILE}:")
    assert "sum" not in explanation.sentence


def test_input_that_only_one_script_uses_is_named() -> None:
    """B computes both halves of a sum from the first input."""

    def add(first: str, second: str) -> OperationTrace:
        script = Script(left=LOGITS, right=LOGITS + 1)
        squares = [script.call("square", np.square, script.inputs[name]) for name in (first, second)]
        return script.finish(script.call("add", np.add, *squares))

    explanation = _explain(add("left", "right"), add("left", "left"))
    assert explanation is not None
    assert (explanation.cause, explanation.side) == ("unused_input", "b")
    assert explanation.sentence == "loss: B computes nothing from the model's input right"
    reverse = _explain(add("left", "left"), add("left", "right"))
    assert reverse is not None
    assert (reverse.cause, reverse.side) == ("unused_input", "a")


def test_lines_are_added_to_another_explanation() -> None:
    explanation = Explanation("loss_reduction", "the loss of A is a mean; that of B is a sum")
    pair = make_pair(_mean(_script()), _mean(_script(), name="sum"))
    sentence = add_lines(explanation, pair, LOSS, LOSS).sentence
    assert sentence.startswith(f"{explanation.sentence} (A: {FILE}:")
    assert f", B: {FILE}:" in sentence
    assert add_lines(explanation, make_pair(_mean(_script()), _mean(_script())), LOSS, LOSS) == explanation


def test_stopped_gradient_is_named_if_the_loss_depends_on_it() -> None:
    explanation = explain_stopped_gradients(make_pair(_mean(_script()), _mean(_script(), is_stopped=True)))
    assert explanation is not None
    assert (explanation.cause, explanation.side) == ("stopped_gradient", "b")
    assert explanation.sentence.startswith("only B computes no gradient through detach in ")
    assert explanation.sentence.count("detach") == 2  # the operation, and once in its line
    both = make_pair(_mean(_script(), is_stopped=True), _mean(_script(), is_stopped=True))
    assert explain_stopped_gradients(both) is None


def test_other_examples_or_missing_operations_are_not_compared() -> None:
    a, b = _mean(_script()), _mean(_script(), name="sum")
    assert explain_operations(make_pair(a, b, counts=(8, 4)), "loss", LOSS, LOSS) is None
    assert explain_operations(make_pair(a, {**b, "complete": False}), "loss", LOSS, LOSS) is None
    assert explain_operations(make_pair(a, {**b, "loss": None}), "loss", LOSS, LOSS) is None
    assert explain_operations(make_pair(a, b), "x", "layer/fc/input", "layer/fc/input") is None
