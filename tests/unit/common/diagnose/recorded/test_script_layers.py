"""Tests of what scripts define themselves: layers with an epsilon, variables that are added, and layouts of outputs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from scipy.special import log_softmax

from common.diagnose.explain.moving_statistics import FirstStep
from common.diagnose.findings import Stage
from common.diagnose.recorded.layer_epsilons import compare_own_epsilons
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.stages.loss import find_side_formulas
from common.diagnose.recorded.stages.state import _explain_added_variables
from common.recording.record_format import StepFacts
from common.recording.record_reader import open_record
from common.recording.record_writer import RecordWriter

GAIN = SimpleNamespace(names_a=("norm.gain",), names_b=("norm/a",), title="norm.gain | norm/a")


def pair_norms(eps: float, epsilon: float) -> Any:
    """Return a pair of models with a norm of their own, whose epsilon has another name in B."""
    sides = [
        SimpleNamespace(layers=[{"path": "norm", "attributes": {name: value}, "variables": {"gain": variable}}])
        for name, value, variable in (("eps", eps, "norm.gain"), ("variance_epsilon", epsilon, "norm/a"))
    ]
    models = SimpleNamespace(layers=[], variables=[GAIN])
    return SimpleNamespace(a=sides[0], b=sides[1], sides=sides, models=models)


def test_epsilons_of_layers_of_the_scripts_are_compared() -> None:
    stage = Stage("hyperparameters")
    compare_own_epsilons(stage, pair_norms(1e-6, 1e-6))
    assert not stage.causes
    compare_own_epsilons(stage, pair_norms(1e-6, 1e-3))
    assert [(cause.cause, cause.sentence) for cause in stage.causes] == [
        ("own_epsilon", "norm: epsilon is 1e-06 in A and 0.001 in B")
    ]


@pytest.mark.parametrize(("factor", "is_explained"), [(2, True), (1.5, False)])
def test_a_sum_of_two_biases_moves_twice_as_far(factor: float, is_explained: bool) -> None:
    match = SimpleNamespace(names_a=("bias",), names_b=("bias_ih", "bias_hh"), title="bias")
    pair = cast("Any", SimpleNamespace(models=SimpleNamespace(variables=[GAIN, match])))
    start, change = np.ones(3), np.array([0.1, -0.2, 0.0])
    stage = Stage("state")
    step = FirstStep("bias", start, start + change, start + factor * change)
    assert _explain_added_variables(stage, pair, [step]) == is_explained
    assert [cause.cause for cause in stage.causes] == ["added_variables"] * is_explained


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("has_axis", [True, False])
def test_the_classes_of_pixels_may_have_the_second_axis(axis: int, has_axis: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    outputs, labels = rng.standard_normal((5, 4, 6, 3)), rng.integers(0, 3, (5, 4, 6))
    loss = -np.take_along_axis(log_softmax(outputs, -1), labels[..., None], -1).sum()
    arrays = {
        "batch/0/input/0": np.zeros((5, 4, 6, 2)),
        "batch/0/output/0": np.moveaxis(outputs, -1, axis),
        "batch/0/label/y": labels[..., None] if has_axis else labels,
    }
    facts: StepFacts = {
        "step": 1, "micro_batches": 1, "losses": [float(loss)], "rates": [0.1], "loss_scale": None, "skipped": False,
        "max_norm": None,
    }  # fmt: skip
    writer = RecordWriter(str(tmp_path), "torch", {"versions": {}, "device": "cpu", "flags": {}})
    writer.write_start({})
    writer.write_step(facts, arrays)
    writer.close(complete=True)
    assert find_side_formulas(RecordedSide("a", open_record(tmp_path)), 1, "float64") == ["cross entropy, sum"]
