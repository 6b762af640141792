"""Tests of outputs that one script returns as logits, and the other as probabilities or their logarithms."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, log_softmax, softmax

from common.diagnose.recorded.output_activation import align_outputs, returns_logits

LOGITS = np.random.default_rng(0).standard_normal((6, 4))
FORMS = {"logits": LOGITS, "probabilities": softmax(LOGITS, 1), "logarithms": log_softmax(LOGITS, 1)}
KERAS = "SparseCategoricalCrossentropy"
LOSSES: dict[str, tuple[bool, str, dict[str, object]]] = {
    "logits": (True, "cross_entropy", {}),
    "logarithms": (True, "nll_loss", {}),
    "probabilities": (False, KERAS, {"from_logits": False}),
}


def build_side(is_torch: bool, name: str, arguments: dict[str, object]) -> Any:
    loss = {"name": name, "arguments": arguments}
    ranks = [SimpleNamespace(operations=None)]
    return SimpleNamespace(is_torch=is_torch, record=SimpleNamespace(facts={"loss": loss}, ranks=ranks))


@pytest.mark.parametrize("b", LOSSES)
@pytest.mark.parametrize("a", LOSSES)
def test_losses_that_take_other_forms_of_the_same_outputs(a: str, b: str) -> None:
    outputs = align_outputs(build_side(*LOSSES[a]), build_side(*LOSSES[b]), (FORMS[a], FORMS[b]))
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-12)


def test_an_activation_that_no_loss_explains_stays() -> None:
    sides = build_side(*LOSSES["logits"]), build_side(*LOSSES["logits"])
    outputs = LOGITS, FORMS["probabilities"]
    assert align_outputs(*sides, outputs) == outputs


def test_a_softmax_of_a_loss_counts_whatever_the_other_loss_does_with_probabilities() -> None:
    sides = build_side(*LOSSES["logits"]), build_side(False, "BinaryCrossentropy", {"from_logits": False})
    outputs = align_outputs(*sides, (LOGITS, FORMS["probabilities"]))
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-12)


def test_each_output_of_a_model_with_several_losses_is_aligned_by_itself() -> None:
    losses = {"0": {"name": KERAS, "arguments": {"from_logits": False}}, "1": {"name": "mse", "arguments": {}}}
    sides = build_side(*LOSSES["logits"]), build_side(False, "several", losses)  # type: ignore[arg-type]
    outputs = align_outputs(*sides, (LOGITS, FORMS["probabilities"]))
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-12)
    values = LOGITS[:, :1]
    assert align_outputs(*sides, (values, values)) == (values, values)


def test_probabilities_of_images_are_those_of_the_axis_of_the_classes() -> None:
    logits = np.random.default_rng(0).standard_normal((2, 3, 4, 4))
    sides = build_side(*LOSSES["logits"]), build_side(*LOSSES["probabilities"])
    outputs = align_outputs(*sides, (logits, softmax(logits, 1)))
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-12)


def test_equal_outputs_stay_though_one_loss_takes_them_in_another_form() -> None:
    sides = build_side(True, "binary_cross_entropy", {}), build_side(True, "binary_cross_entropy_with_logits", {})
    outputs = FORMS["probabilities"], FORMS["probabilities"] + 1e-9
    assert align_outputs(*sides, outputs) is outputs


def test_keras_takes_the_logits_before_the_softmax_of_a_model() -> None:
    sides = build_side(*LOSSES["logits"]), build_side(False, KERAS, {"from_logits": True})
    outputs = align_outputs(*sides, (LOGITS, FORMS["probabilities"]))
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-12)
    other = LOGITS + 1, FORMS["probabilities"][::-1]
    assert align_outputs(*sides, other) == other


@pytest.mark.parametrize("name", ["log_softmax", "Softmax"])
@pytest.mark.parametrize("is_first", [True, False])
def test_logits_that_the_script_converts_equal_probabilities(name: str, is_first: bool) -> None:
    """Neither loss is one whose form is known, such as CTC."""
    unknown = build_side(True, "ctc_loss", {}), build_side(False, "own", {})
    operation = {"name": name, "layer": "", "inputs": [3]}
    trace = {"names": {"batch/0/output/0": 3}, "operations": [operation]}
    unknown[0].record.ranks[0].operations = trace
    outputs = FORMS["logits"], FORMS["probabilities"]
    sides, outputs = (unknown, outputs) if is_first else (unknown[::-1], outputs[::-1])
    aligned = align_outputs(*sides, outputs)
    np.testing.assert_allclose(aligned[0], aligned[1])
    operation["layer"] = "head"  # the model's own activation follows on other outputs
    assert align_outputs(*sides, outputs) == outputs


def test_log_probabilities_equal_the_probabilities_of_a_script_with_its_own_loss() -> None:
    sides = build_side(*LOSSES["logarithms"]), build_side(False, "own", {})
    for first, second in ((0, 1), (1, 0)):
        outputs = FORMS["logarithms"], FORMS["probabilities"]
        aligned = align_outputs(sides[first], sides[second], (outputs[first], outputs[second]))
        np.testing.assert_allclose(aligned[0], aligned[1], rtol=1e-12)


def test_logits_equal_the_probabilities_that_a_loss_of_another_kind_takes() -> None:
    """One script passes the logits of each label to a cross entropy; the model of the other one ends in sigmoid."""
    sides = build_side(*LOSSES["logits"]), build_side(False, "BinaryCrossentropy", {"from_logits": False})
    aligned = align_outputs(*sides, (LOGITS, expit(LOGITS)))
    np.testing.assert_allclose(aligned[0], aligned[1], rtol=1e-12)
    unknown = build_side(True, "own", {})
    outputs = LOGITS, expit(LOGITS)
    assert align_outputs(unknown, sides[1], outputs) == outputs  # its loss may take them for probabilities


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ("linear", True),
        ("Conv2D", True),
        ("linear squeeze", True),
        ("linear sigmoid", False),
        ("linear tanh view", False),
        ("", False),
    ],
)
def test_a_model_whose_last_operation_has_weights_returns_logits(operations: str, expected: bool) -> None:
    side, names = build_side(*LOSSES["logits"]), operations.split()
    assert not returns_logits(side)
    traced = [{"name": name, "arguments": {}, "inputs": [i], "outputs": [i + 1]} for i, name in enumerate(names)]
    side.record.ranks[0].operations = {"names": {"batch/0/output/0": len(names)}, "operations": traced}
    assert returns_logits(side) == expected


@pytest.mark.parametrize("is_first", [True, False])
def test_logarithms_equal_probabilities_whatever_the_losses_take(is_first: bool) -> None:
    """Both losses are functions of the scripts, whose forms are not known."""
    sides = build_side(True, "own", {}), build_side(False, "own", {})
    outputs = FORMS["logarithms"], FORMS["probabilities"]
    aligned = align_outputs(*sides, outputs if is_first else outputs[::-1])
    np.testing.assert_allclose(aligned[0], FORMS["probabilities"], rtol=1e-12)
    np.testing.assert_allclose(aligned[1], FORMS["probabilities"], rtol=1e-12)


def test_logarithms_of_other_numbers_stay() -> None:
    """The logarithm of a rate, for example, is no logarithm of the probabilities of classes."""
    sides = build_side(True, "own", {}), build_side(False, "own", {})
    for outputs in ((LOGITS, np.exp(LOGITS)), (-np.abs(LOGITS), np.exp(-np.abs(LOGITS)))):
        assert align_outputs(*sides, outputs) is outputs


def test_large_outputs_are_no_logarithms() -> None:
    sides = build_side(True, "own", {}), build_side(False, "own", {})
    outputs = 1000 + np.abs(LOGITS), FORMS["probabilities"]
    with np.errstate(over="raise"):
        assert align_outputs(*sides, outputs) is outputs
