"""Tests of losses that reduce equal tensors to one number."""

from collections.abc import Callable

import numpy as np
import pytest

from common.diagnose.recorded.operations.equal_reductions import explain_other_reduction, reduces_equal_tensors
from common.recording.operation_format import OperationTrace
from tests.unit.common.diagnose.recorded.operations.test_explanation import make_pair
from tests.unit.common.diagnose.recorded.operations.traces import Script

VALUES = np.random.default_rng(0).normal(size=(8, 1))
VALUES -= VALUES.mean() - 1e-4  # the terms of the mean cancel each other


def _reduce(
    name: str, function: Callable[..., object], values: np.ndarray = VALUES, last: str = "neg"
) -> OperationTrace:
    script = Script(x=values)
    reduced = script.call(name, function, script.call("clone", np.copy, script.inputs["x"]))
    return script.finish(script.call(last, np.negative if last == "neg" else np.exp, reduced))


def test_rounding_of_a_mean_whose_terms_cancel() -> None:
    other = VALUES + np.where(np.arange(8)[:, None] == 3, 1e-7, 0)
    pair = make_pair(_reduce("mean", np.mean), _reduce("Mean", np.mean, other))
    assert reduces_equal_tensors(pair)
    assert explain_other_reduction(pair, "loss") is None


@pytest.mark.parametrize(
    "other",
    [
        _reduce("mean", np.mean, VALUES * 1.001),
        _reduce("mean", np.mean, last="exp"),
        _reduce("sum", np.sum),
        _reduce("max", np.max),
    ],
)
def test_other_losses_are_no_rounding(other: OperationTrace) -> None:
    assert not reduces_equal_tensors(make_pair(_reduce("mean", np.mean), other))


@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_sum_in_place_of_a_mean_is_named_beside_rounding(is_reversed: bool) -> None:
    """Another model has computed the values, and its optimizer makes rounding larger."""
    traces = _reduce("mean", np.mean), _reduce("Sum", np.sum, VALUES * (1 + 2e-5))
    explanation = explain_other_reduction(make_pair(*(traces[::-1] if is_reversed else traces)), "loss")
    assert explanation is not None
    assert (explanation.cause, explanation.confirmed) == ("operation", True)
    assert ("A computes Sum" if is_reversed else "A computes mean") in explanation.sentence


def test_a_sum_of_other_values_is_not_named() -> None:
    pair = make_pair(_reduce("mean", np.mean), _reduce("Sum", np.sum, VALUES * 1.01))
    assert explain_other_reduction(pair, "loss") is None
