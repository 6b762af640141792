"""Checks of tensors, and the verdict of a stage."""

import numpy as np
import pytest

from common.diagnose.diagnosis import Diagnosis
from common.diagnose.findings import Stage, TensorCheck
from common.diagnose.rounding import SMALLEST_TOLERANCE


@pytest.mark.parametrize("precision", SMALLEST_TOLERANCE)
def test_a_difference_counts_above_the_tolerance(precision: str) -> None:
    tolerance = SMALLEST_TOLERANCE[precision]
    assert not TensorCheck("x", tolerance / 2, precision=precision).differs
    assert TensorCheck("x", tolerance * 2, precision=precision).differs


def test_only_a_tensor_that_differs_is_summarized() -> None:
    stage, equal, other = Stage("activations"), np.ones(3), np.array([1.0, 1, 2])
    assert stage.compare_arrays("equal", equal, equal).summary is None
    assert stage.compare_arrays("other", equal, other).summary is not None
    assert [check.differs for check in stage.checks] == [False, True]


def test_nan_on_both_sides_is_no_difference() -> None:
    a, stage = np.array([1.0, np.nan, np.inf]), Stage("activations")
    assert not stage.compare_arrays("x", a, a.copy()).differs
    assert stage.compare_arrays("x", a, np.array([1.0, 2.0, np.inf])).differs
    assert stage.compare_arrays("x", a, np.array([1.0, np.nan, 2.0])).differs


def test_a_note_names_tensors_that_hold_rounding_errors_only() -> None:
    checks = [TensorCheck("key.bias", 0.5, 0.3, precision="bfloat16"), TensorCheck("w", 0.0)]
    stage = Stage("gradients", checks, precision="bfloat16")
    assert stage.verdict == "equal"
    assert stage.rounding_note.startswith("not compared in bfloat16") and stage.rounding_note.endswith(": key.bias")
    assert Stage("gradients", [TensorCheck("w", 0.0)]).rounding_note == ""
    inherited = TensorCheck("w", 0.5, may_begin_here=False)
    assert Stage("gradients", [*stage.checks, inherited], precision="bfloat16").rounding_note == ""


@pytest.mark.parametrize(("count", "end"), [(3, "0, 1, 2"), (4, "0, 1, 2 and 1 other"), (5, "0, 1, 2 and 2 others")])
def test_a_stage_that_holds_rounding_errors_only_is_not_compared(count: int, end: str) -> None:
    lost = [TensorCheck(str(number), 0.5, 0.3, precision="bfloat16") for number in range(count)]
    stage = Stage("gradients", lost, precision="bfloat16")
    assert stage.verdict == "not compared" and stage.rounding_note.endswith(f": {end}")
    stage.add_mismatch("missing")
    assert stage.verdict == "differs"


def test_what_a_script_can_correct_comes_before_what_the_frameworks_do() -> None:
    hyperparameters, activations, state = (Stage(name) for name in ("hyperparameters", "activations", "state"))
    for stage, name, is_confirmed in (
        (hyperparameters, "epsilon_place", True),
        (activations, "operation", False),
        (activations, "activation", True),
        (state, "biased_variance", True),
    ):
        stage.add_cause(name, "b", "x", name, confirmed=is_confirmed)
    diagnosis = Diagnosis({"a": "A", "b": "B"}, [hyperparameters, activations, state])
    assert [cause.cause for cause in diagnosis.causes] == [
        "activation",
        "operation",
        "biased_variance",
        "epsilon_place",
    ]
