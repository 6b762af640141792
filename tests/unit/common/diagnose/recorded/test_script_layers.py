"""Tests of what scripts define themselves: layers with an epsilon, variables that are added, and layouts of outputs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from scipy.special import log_softmax

from common.diagnose.explain.moving_statistics import FirstStep
from common.diagnose.findings import DIFFERS, Stage
from common.diagnose.recorded.layer_epsilons import compare_own_epsilons
from common.diagnose.recorded.recorded_side import RecordedSide
from common.diagnose.recorded.stages.hyperparameters import _is_trained
from common.diagnose.recorded.stages.initial_weights import _report_unpaired
from common.diagnose.recorded.stages.loss import find_side_formulas
from common.diagnose.recorded.stages.state import _explain
from common.diagnose.recorded.walk import _begins_at, _drop_needless_causes
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


def test_an_epsilon_is_compared_unless_the_same_side_has_a_layer_of_a_known_kind() -> None:
    for paths, expected in ((("norm", "x"), 0), (("x", "norm"), 0), (("x", "y"), 1)):
        stage, pair = Stage("hyperparameters"), pair_norms(1e-6, 1e-3)
        pair.models.layers.append(SimpleNamespace(kind="linear", path_a=paths[0], path_b=paths[1]))
        compare_own_epsilons(stage, pair)
        assert len(stage.causes) == expected
    pair.b.layers[0]["path"] = "other"
    pair.models.layers[0] = SimpleNamespace(kind="linear", path_a="other", path_b="norm")  # B's norm is another layer
    compare_own_epsilons(stage := Stage("hyperparameters"), pair)
    assert len(stage.causes) == 1


@pytest.mark.parametrize(
    ("checks", "begins"),
    [
        ([("first", 0), ("input of norm", 0), ("norm", 1), ("last", 1)], True),
        ([("first", 1), ("input of norm", 1), ("norm", 1), ("last", 1)], False),
        ([("first", 0), ("norm", 0), ("last", 1)], False),
        ([("first", 0), ("input of last", 1), ("last", 1)], True),
        ([("first", 0), ("output 0", 1)], True),
        ([("first", 0), ("input of last", 0), ("last", 1)], False),
        ([("first", 1), ("input of last", 1)], False),
        ([], False),
    ],
)
def test_an_epsilon_counts_only_if_the_difference_begins_at_its_layer(
    checks: list[tuple[str, float]], begins: bool
) -> None:
    stage = Stage("activations")
    for tensor, difference in checks:
        stage.compare_arrays(tensor, np.ones(2), np.ones(2) + difference, may_begin_here=stage.verdict != DIFFERS)
    layers = [{"path": path} for path in ("first", "norm", "last")]
    pair = cast("Any", SimpleNamespace(a=SimpleNamespace(layers=layers), get_stage=lambda name: stage))
    assert _begins_at(pair, "norm") == begins


KERNEL = SimpleNamespace(names_a=("kernel",), names_b=("kernel",), title="kernel")
BIAS = SimpleNamespace(names_a=("bias",), names_b=("bias_ih", "bias_hh"), title="bias")


@pytest.mark.parametrize(
    ("factor", "kernel", "later", "expected"),
    [
        (2.0, 0.0, 0.1, [("added_variables", "bias")]),
        (1.5, 0.0, 0.1, [("unexplained", "step 1: bias")]),
        (2.0, 0.1, 0.1, [("added_variables", "bias"), ("unexplained", "step 1: kernel")]),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_sum_of_two_biases_explains_no_other_variable(
    factor: float, kernel: float, later: float, expected: list[tuple[str, str]], is_first: bool
) -> None:
    matches = [BIAS, KERNEL] if is_first else [KERNEL, BIAS]
    pair = cast(
        "Any",
        SimpleNamespace(models=SimpleNamespace(variables=[GAIN, *matches], layers=[]), equal_steps=[1, 2], sides=()),
    )
    start, change = np.ones(3), np.array([0.1, -0.2, 0.0])
    moves = {"bias": (change, factor * change), "kernel": (change, change + kernel)}
    stage = Stage("state")
    steps = [FirstStep(match.title, start, *(start + move for move in moves[match.title])) for match in matches]
    for step in steps:
        stage.compare_arrays(f"step 1: {step.name}", step.a, step.b)
    stage.compare_arrays("step 2: kernel", start, start + later)
    _explain(stage, pair, steps, may_begin_here=True, is_frozen=False)
    assert [(cause.cause, cause.tensor) for cause in stage.causes] == expected


@pytest.mark.parametrize(("cause", "is_kept"), [("added_variables", True), ("momentum", False)])
def test_an_unexplained_variable_stays_beside_a_sum_of_two(cause: str, is_kept: bool) -> None:
    stage = Stage("state")
    stage.add_cause(cause, "b", "bias", "")
    stage.add_cause("unexplained", "b", "step 1: kernel", "", confirmed=False)
    _drop_needless_causes(cast("Any", SimpleNamespace(stages=[stage], update_causes=frozenset())))
    assert [known.cause for known in stage.causes] == [cause, *["unexplained"] * is_kept]


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


@pytest.mark.parametrize(
    ("is_sum", "trainable", "expected"), [(True, {"bias_ih"}, False), (True, set(), True), (False, {"bias_ih"}, True)]
)
def test_a_frozen_term_of_a_trained_sum_is_no_mistake(is_sum: bool, trainable: set[str], expected: bool) -> None:
    """PyTorch's LSTM trains one bias, as Keras's does, if a script freezes the other one."""
    match = SimpleNamespace(**vars(BIAS), is_sum=is_sum)
    group = {"hyperparameters": {}, "parameters": ["bias"]}
    keras = SimpleNamespace(optimizer={"name": "keras.Adam", "groups": [group]}, trainable={"bias"}, is_torch=False)
    torch = SimpleNamespace(trainable=trainable)
    models = SimpleNamespace(variables=[match])
    pair = cast("Any", SimpleNamespace(sides=(keras, torch), models=models, find_used=lambda side: None))
    assert _is_trained(pair, 1, "bias_hh") is expected


def test_a_sum_that_moves_less_than_rounding_is_named() -> None:
    """The first update of a bias of 1 is small beside it."""
    match = SimpleNamespace(**vars(BIAS))
    models = SimpleNamespace(variables=[match], layers=[])
    pair = cast("Any", SimpleNamespace(models=models, equal_steps=[1], sides=()))
    stage, start = Stage("state", precision="float32"), np.ones(3)
    stage.compare_arrays("step 1: bias", start + 1e-3, start + 2e-3, 1e-4)
    assert not stage.checks[0].differs
    _explain(stage, pair, [FirstStep("bias", start, start + 1e-3, start + 2e-3)], may_begin_here=True, is_frozen=False)
    assert [cause.cause for cause in stage.causes] == ["added_variables"]
    assert stage.verdict == "differs"


@pytest.mark.parametrize(("shape", "cause"), [([6, 4], "tied_on_one_side"), ([6, 5], "missing_parameter")])
def test_a_variable_that_the_other_side_ties(shape: list[int], cause: str) -> None:
    facts = [
        {"variables": {"wte": {"shape": [4, 6]}}, "tied": [["wte", "head"]]},
        {"variables": {"dense/kernel": {"shape": shape}}, "tied": []},
    ]
    sides = [
        SimpleNamespace(
            name=name, title=name, is_torch=name == "a", trainable={"dense/kernel"},
            record=SimpleNamespace(facts={"model": model}, ranks=[SimpleNamespace(operations=None)]),
            batches=SimpleNamespace(count_examples=lambda step: [8]),
        )
        for name, model in zip("ab", facts, strict=True)
    ]  # fmt: skip
    models = SimpleNamespace(unpaired_a=[], unpaired_b=["dense/kernel"])
    pair = cast(
        "Any",
        SimpleNamespace(
            a=sides[0], b=sides[1], sides=sides, steps=[1], models=models, find_used=lambda side: {"dense/kernel"}
        ),
    )
    stage = Stage("initial weights")
    _report_unpaired(stage, pair)
    assert [known.cause for known in stage.causes] == [cause]
    sides[1].batches.count_examples = lambda step: [0]
    unseen = Stage("initial weights")
    _report_unpaired(unseen, pair)
    assert unseen.omission == "the forward pass of b is not recorded, so that its layers cannot be paired"
