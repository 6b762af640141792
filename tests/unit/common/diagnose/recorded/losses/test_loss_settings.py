"""Arguments of loss functions under common names."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.findings import Stage
from common.diagnose.recorded.losses.loss_settings import compare_loss_settings, describe_kind, read_loss_settings
from common.recording.record_format import LossFacts

KERAS: LossFacts = {"name": "keras.losses.KLDivergence", "arguments": {"reduction": "sum_over_batch_size"}}


@pytest.mark.parametrize(("reduction", "is_equal"), [("batchmean", True), ("mean", False), ("sum", False)])
def test_a_kl_divergence_of_pytorch_averages_over_the_examples_with_batchmean(reduction: str, is_equal: bool) -> None:
    settings = read_loss_settings({"name": "kl_div", "arguments": {"reduction": reduction}})
    assert (settings == read_loss_settings(KERAS)) == is_equal


@pytest.mark.parametrize(("reduction", "is_equal"), [("mean", False), ("none", False)])
def test_a_ctc_loss_of_pytorch_divides_by_the_numbers_of_labels(reduction: str, is_equal: bool) -> None:
    torch, keras = (
        read_loss_settings({"name": name, "arguments": {"reduction": value}})
        for name, value in (("ctc_loss", reduction), ("keras.losses.CTC", "sum_over_batch_size"))
    )
    assert torch["kind"] == keras["kind"]
    assert (torch["reduction"] == keras["reduction"]) == is_equal


def test_the_words_for_a_function_of_a_damaged_record_are_short_and_on_one_line() -> None:
    assert describe_kind({"name": "keras.losses.Own\n" + 1000 * "x", "arguments": {}}) == "Own " + 56 * "x"


def _make_side(weights: np.ndarray | None, name: str) -> Any:
    """Return a side with one micro-batch, whose loss function perhaps received weights of positive labels."""
    labels = {"target": np.ones((4, 3))} | ({} if weights is None else {"pos_weight": weights})
    facts: dict[str, Any] = {"loss": {"name": name, "arguments": {}}}
    record = SimpleNamespace(facts=facts, steps=[1], get_step_facts=lambda step: [{}])
    batches = SimpleNamespace(
        list_micro_batches=lambda step: [(0, 0)],
        read_micro_batch=lambda step, rank, number, kind: labels,
        read_labels=lambda step: labels,
        has_abridged_labels=lambda step: False,
    )
    return SimpleNamespace(record=record, batches=batches, get_facts=lambda step: {})


@pytest.mark.parametrize(
    ("weights", "name", "words"),
    [
        (np.array(3.0), "keras.losses.BinaryCrossentropy", "3.0 in A and 1.0 in B"),
        (np.array([2.0, 5.0, 2.0]), "keras.losses.BinaryCrossentropy", "[2.0, 5.0] in A and 1.0 in B"),
        (np.ones(3), "keras.losses.BinaryCrossentropy", ""),
        (None, "keras.losses.BinaryCrossentropy", ""),
        (np.array(3.0), "own_loss", ""),  # it may weigh the labels itself
    ],
)
def test_the_weight_of_positive_labels_is_a_setting(weights: np.ndarray | None, name: str, words: str) -> None:
    stage = Stage("hyperparameters")
    sides = _make_side(weights, "binary_cross_entropy_with_logits"), _make_side(None, name)
    pair: Any = SimpleNamespace(a=sides[0], b=sides[1], sides=sides, steps=[1])
    compare_loss_settings(stage, pair)
    expected = [("class_weights", f"the loss function's weight of positive labels is {words}")] if words else []
    assert [(cause.cause, cause.sentence) for cause in stage.causes] == expected
