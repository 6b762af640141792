"""Tests of the reasons of other moving statistics of two records."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.explain.moving_statistics import FirstStep
from common.diagnose.findings import Stage
from common.diagnose.recorded.stages.state import _explain
from tests.unit.common.diagnose.recorded.operations.traces import Script

COUNT = 25_000  # elements of a channel


def make_pair(*traces: Any) -> Any:
    """Return two records with these operations, whose models have a BatchNorm."""
    batches = SimpleNamespace(list_micro_batches=lambda step: [(0, 0)], count_rows=lambda *place: [50])
    sides = [
        SimpleNamespace(batches=batches, record=SimpleNamespace(ranks=[SimpleNamespace(operations=trace)]))
        for trace in traces
    ]
    match = SimpleNamespace(title="bn.weight", names_a=["bn.weight"], names_b=["bn.weight"])
    models = SimpleNamespace(variables=[match], layers=[])
    return SimpleNamespace(sides=sides, models=models, equal_steps=[1], stages=[])


def explain(pair: Any, first: FirstStep, difference: float) -> list[tuple[str, str]]:
    stage = Stage("state", precision="float32")
    stage.compare_arrays(f"step 1: {first.name}", np.ones(2), np.array([1.0, 1 + difference]), may_begin_here=False)
    _explain(stage, pair, [first], may_begin_here=False, is_frozen=False)
    return [(cause.cause, cause.sentence) for cause in stage.causes]


@pytest.mark.parametrize("shape", [[50, 64, 25, 20], [50, 25, 20, 64], [COUNT, 64]])
@pytest.mark.parametrize("difference", [0.0, 0.5])
def test_a_large_number_of_elements_explains_a_variance_that_differs(shape: list[int], difference: float) -> None:
    trace = {"names": {"layer/bn/input": 0, "layer/bn/output": 1}, "tensors": [{"shape": shape}], "operations": []}
    variance, start = np.random.default_rng(0).uniform(0.5, 2, 64), np.ones(64)
    moved = [0.9 * start + 0.1 * x for x in (variance, variance * COUNT / (COUNT - 1))]
    causes = explain(make_pair(None, trace), FirstStep("bn.running_var", start, *moved), difference)
    sentence = "in B bn.running_var moves towards 1.00004 times A's variance: one divides by n - 1"
    assert causes == ([("biased_variance", sentence)] if difference else [])


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ((1, 2), "B uses bn.weight 2 times, and the other script 1"),
        ((2, 1), "A uses bn.weight 2 times, and the other script 1"),
        ((1, 1), "compare momentum (Keras's is 1 - PyTorch's)"),
        ((0, 1), "compare momentum (Keras's is 1 - PyTorch's)"),
    ],
)
def test_a_layer_that_one_script_calls_more_often_moves_further(calls: tuple[int, int], reason: str) -> None:
    traces = []
    for count in calls:
        script = Script(x=np.ones((4, 3)), **{"weight": np.ones(3)})
        weight, x = script.name("weight/bn.weight", script.inputs["weight"]), script.inputs["x"]
        for _ in range(count):
            x = script.call("batch_norm", np.multiply, x, weight)
        traces.append(script.finish(script.call("sum", np.sum, x)))
    mean, start = np.linspace(1, 2, 5), np.zeros(5)
    factor = 0.19 if calls == (1, 2) else 0.05
    causes = explain(make_pair(*traces), FirstStep("bn.running_mean", start, 0.1 * mean, factor * mean), 0.5)
    times = f"{10 * factor:.4g}"
    assert causes == [("moving_statistics", f"in B bn.running_mean moves {times} times as far: {reason}")]
