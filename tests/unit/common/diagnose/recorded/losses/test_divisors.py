"""Tests of losses that two scripts divide by different numbers."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.recorded.losses.divisors import explain_divisor

CLASSES = np.array([[3, 1, 0, 0], [2, 5, 4, 0]])
WEIGHTS = np.array([0.5, 1, 1, 0.2])


def make_side(arrays: Mapping[str, Mapping[str, np.ndarray]], micro_batches: int = 1, is_abridged: bool = False) -> Any:
    batches = SimpleNamespace(
        list_micro_batches=lambda step: [(0, number) for number in range(micro_batches)],
        has_abridged_labels=lambda step: is_abridged,
        read_micro_batch=lambda step, rank, number, kind: arrays.get(kind, {}),
        read_step=lambda step, kind: {"0": np.zeros((2, 4, 6))} if kind == "output" else {},
    )
    return SimpleNamespace(batches=batches)


def explain(a: Any, b: Any, values: tuple[float, float]) -> str:
    pair: Any = SimpleNamespace(a=a, b=b, sides=(a, b), precision="float32")
    explanation = explain_divisor(pair, 1, "the cross entropy", values)
    assert explanation is None or (explanation.cause, explanation.confirmed) == ("loss_reduction", True)
    return "" if explanation is None else explanation.sentence


LABELS, OTHERS = make_side({"label": {"target": CLASSES}}), make_side({})
WEIGHTED = make_side({"input": {"x": np.ones((4, 2)), "weights": WEIGHTS}})


@pytest.mark.parametrize(
    ("sides", "values", "words"),
    [
        ((LABELS, OTHERS), (1.6, 1.0), "A (1.6) is divided by the number of labels other than 0 (5 of 8); that of B"),
        ((OTHERS, LABELS), (1.0, 1.6), "B (1.6) is divided by the number of labels other than 0 (5 of 8); that of A"),
        ((LABELS, OTHERS), (8 / 7, 1.0), "A (1.14286) is divided by the number of labels other than 1 (7 of 8)"),
        ((WEIGHTED, OTHERS), (2.7, 4.0), "B (4) is divided by the sum of input weights (2.7, of 4 numbers); that of A"),
    ],
)
def test_the_labels_or_the_weights_that_a_loss_is_divided_by_are_named(
    sides: tuple[Any, Any], values: tuple[float, float], words: str
) -> None:
    assert explain(*sides, values).startswith(f"the cross entropy of {words}")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((0.5, 2.0), "B is 4 times that of A: B adds the 4 elements of an example of which A takes the mean"),
        ((12.0, 0.5), "A is 24 times that of B: A adds the 24 elements of an example of which B takes the mean"),
    ],
)
def test_a_sum_over_an_axis_of_the_outputs_is_named(values: tuple[float, float], words: str) -> None:
    assert explain(LABELS, OTHERS, values) == f"the cross entropy of {words}"


@pytest.mark.parametrize("values", [(1.0, 2.0), (1.0, 5.0), (1.0, -4.0), (0.0, 1.0), (1.0, 1.5), (1.0, 1.0)])
def test_other_ratios_have_other_reasons(values: tuple[float, float]) -> None:
    """The outputs have no axis of 5 elements, and 2 is a usual factor."""
    assert explain(LABELS, OTHERS, values) == ""


def test_labels_of_several_micro_batches_or_a_part_of_them_show_no_divisor() -> None:
    arrays = {"label": {"target": CLASSES}}
    for side in (make_side(arrays, micro_batches=2), make_side(arrays, is_abridged=True)):
        assert explain(side, OTHERS, (1.6, 1.0)) == ""


IDS = np.array([[3, 7, 0, 0], [2, 5, 4, 0]])


def test_ids_other_than_0_that_a_loss_is_divided_by_are_named() -> None:
    side = make_side({"input": {"ids": IDS}})
    words = "the number of ids other than 0 in input ids (5 of 8); that of "
    assert explain(side, OTHERS, (1.6, 1.0)).startswith(f"the cross entropy of A (1.6) is divided by {words}B")
    assert f"B (1.6) is divided by {words}A" in explain(OTHERS, side, (1.0, 1.6))


@pytest.mark.parametrize(
    "arrays",
    [
        {"input": {"x": IDS.astype(np.float32)}},  # no ids
        {"input": {"x": np.array([0, 3])}},  # another share
        {"label": {"x": IDS[:, :2]}},  # a label is counted by its values
    ],
)
def test_other_arrays_hold_no_ids(arrays: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    assert "ids" not in explain(make_side(arrays), OTHERS, (1.6, 1.0))
