"""Tests of losses of which one script differentiates only a part."""

import numpy as np
import pytest

from common.diagnose.findings import Explanation
from common.diagnose.recorded.operations.explanation import explain_operations
from common.diagnose.recorded.operations.operation_names import LOSS
from common.diagnose.recorded.operations.partial_losses import explain_partial_loss
from common.recording.operation_format import OperationTrace
from tests.unit.common.diagnose.recorded.operations.test_explanation import make_pair
from tests.unit.common.diagnose.recorded.operations.traces import Script
from tests.unit.common.recording.tensors import Tensor

LOGITS = np.random.default_rng(0).normal(size=(8, 3))


def _lose(is_part: bool, weight: float = 1.0) -> OperationTrace:
    """Return the operations of a loss of two terms, of which a script may differentiate only the first one."""
    script = Script(x=LOGITS)
    x = script.inputs["x"]
    terms: list[Tensor] = [script.call("mse_loss", lambda x: np.mean(x**2), x)]
    terms.append(script.call("amax", lambda x: weight * np.max(x), x))
    total = script.call("add", np.add, *terms)
    return script.finish(terms[0] if is_part else total)


def _explain(a: OperationTrace, b: OperationTrace) -> Explanation | None:
    return explain_operations(make_pair(a, b), "loss", LOSS, LOSS)


@pytest.mark.parametrize(("part", "cause"), [("A", "added_operation"), ("B", "missing_operation")])
def test_a_loss_that_is_a_term_of_the_other_one_is_named(part: str, cause: str) -> None:
    whole = "B" if part == "A" else "A"
    explanation = _explain(_lose(part == "A"), _lose(part == "B"))
    assert explanation is not None
    assert (explanation.cause, explanation.confirmed) == (cause, True)
    words = f"loss: {part}'s loss is only a part of {whole}'s, which {whole} computes with mse_loss in test_partial_"
    assert explanation.sentence.startswith(words)
    assert " and passes to add in test_partial_losses.py:" in explanation.sentence


def test_equal_losses_and_losses_that_differ_by_a_small_term_are_no_parts() -> None:
    assert explain_partial_loss(make_pair(_lose(False), _lose(False)), "loss") is None
    assert explain_partial_loss(make_pair(_lose(True), _lose(False, weight=1e-6)), "loss") is None
    assert explain_partial_loss(make_pair(_lose(True), {**_lose(False), "loss": None}), "loss") is None
