"""Tests of labels that only one script passes to its loss."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.findings import Stage
from common.diagnose.recorded.losses.partial_labels import compare_partial_labels

CLASSES, DOMAINS = np.arange(4), np.arange(4) % 2
BOTH = {"target": CLASSES, "target.2": DOMAINS}


def make_side(name: str, labels: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray], has_loss: bool) -> Any:
    batches = SimpleNamespace(
        read_labels=lambda step: labels, read_step=lambda step, kind: others, list_micro_batches=lambda step: []
    )
    record = SimpleNamespace(facts={"loss": {} if has_loss else None})
    return SimpleNamespace(name=name, batches=batches, record=record)


def compare(labels: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray], side: str, has_loss: bool) -> Stage:
    """Compare a script whose loss receives `labels` with one whose loss receives BOTH."""
    lacking, complete = make_side(side, labels, others, has_loss), make_side("ab".replace(side, ""), BOTH, {}, True)
    pair: Any = SimpleNamespace(sides=(lacking, complete) if side == "a" else (complete, lacking))
    stage = Stage("data")
    compare_partial_labels(stage, pair, 1, np.arange(4))
    return stage


@pytest.mark.parametrize("side", ["a", "b"])
def test_a_label_that_only_one_loss_receives_though_both_batches_have_it_is_a_cause(side: str) -> None:
    (cause,) = compare({"y": CLASSES}, {"domains": DOMAINS}, side, has_loss=True).causes
    assert (cause.cause, cause.side, cause.tensor, cause.confirmed) == ("missing_array", side, "labels", True)
    words = f"{side.upper()}'s loss does not receive domains of its batch, which is label target.2 in "
    assert cause.sentence == f"step 1: {words}{'B' if side == 'a' else 'A'}"


@pytest.mark.parametrize(
    ("labels", "others", "has_loss"),
    [
        ({"y": CLASSES}, {"domains": 1 - DOMAINS}, True),
        ({"y": CLASSES + 1}, {"domains": DOMAINS}, True),
        ({"y": CLASSES}, {"domains": DOMAINS}, False),
        ({}, {"domains": DOMAINS}, True),
        (BOTH, {"domains": DOMAINS}, True),
    ],
    ids=["not in the batch", "other labels", "no loss function", "no label", "all labels"],
)
def test_other_labels_are_no_cause(
    labels: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray], has_loss: bool
) -> None:
    assert compare(labels, others, "b", has_loss).causes == []
