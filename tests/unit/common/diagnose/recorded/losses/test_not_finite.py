"""Losses that are not finite, and what follows from them."""

from pathlib import Path

import numpy as np
import pytest

from common.diagnose.recorded.losses.not_finite import find_origin
from common.diagnose.recorded.walk import diagnose_records
from common.recording.record_format import StepFacts
from tests.unit.common.diagnose.recorded.operations.traces import Script
from tests.unit.common.recording.numpy_script import NumpyScript


class Overflowing(NumpyScript):
    """A script whose loss is infinite in the first step, and NaN afterwards."""

    def compute_loss(self, outputs: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
        return (np.nan if np.isnan(outputs).any() else np.inf), np.full(outputs.shape, np.nan)

    def _build_facts(self, step: int, losses: list[float | None]) -> StepFacts:
        facts = super()._build_facts(step, losses)
        if step > 1:
            facts["changed_weights"] = ["fc1.weight", "fc2.bias"]  # as recorders wrote that compare NaN with NaN
        return facts


class Changing(NumpyScript):
    def _build_facts(self, step: int, losses: list[float | None]) -> StepFacts:
        facts = super()._build_facts(step, losses)
        if step > 1:
            facts["changed_weights"] = ["fc1.weight"]
        return facts


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_loss_that_is_not_finite_is_the_only_cause(optimizer: str, framework: str, tmp_path: Path) -> None:
    good = NumpyScript(optimizer=optimizer, framework=framework, decay=0.0).write(tmp_path / "good")
    bad = Overflowing(optimizer=optimizer, decay=0.0).write(tmp_path / "bad")
    causes = diagnose_records(good, bad).causes
    assert [(cause.stage, cause.cause, cause.side, cause.confirmed) for cause in causes] == [
        ("loss", "not_finite", "b", True)
    ]
    assert "step 1: the loss is infinite in B" in causes[0].sentence
    assert [cause.side for cause in diagnose_records(bad, good).causes] == ["a"]


def test_changed_weights_that_are_finite_stay_a_cause(tmp_path: Path) -> None:
    a, b = NumpyScript().write(tmp_path / "a"), Changing().write(tmp_path / "b")
    assert [cause.cause for cause in diagnose_records(a, b).causes] == ["weights_changed"]


@pytest.mark.parametrize("is_masked", [False, True])
def test_the_first_operation_with_such_numbers_is_found(is_masked: bool) -> None:
    script = Script(x=np.array([[1.0, 2.0], [3.0, 1e3]]))
    x = script.inputs["x"]
    if is_masked:  # an infinite mask that a softmax takes is none
        masked = script.call("masked_fill", lambda array: np.where(array > 100, -np.inf, array), x)
        x = script.call("softmax", lambda array: np.exp(array) / np.exp(array).sum(), masked)
    with np.errstate(over="ignore", divide="ignore"):
        powers = script.call("exp", lambda array: np.exp(array * 1e4), x)
    trace = script.finish(script.call("mean", np.mean, powers))
    origin = find_origin(trace)
    assert origin is not None and origin["name"] == "exp"


def test_a_finite_loss_has_no_origin() -> None:
    script = Script(x=np.ones((2, 2)))
    assert find_origin(script.finish(script.call("mean", np.mean, script.inputs["x"]))) is None
