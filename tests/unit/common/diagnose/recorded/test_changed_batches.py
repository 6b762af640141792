"""Tests of batches and inputs that a following script changes or computes."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.findings import INHERITED, Explanation, Stage, TensorCheck
from common.diagnose.recorded.changed_batches import omit_computed_inputs, replace_computed_inputs
from common.diagnose.recorded.example_order import ArrayPair

KNOWN = Explanation("prepared_differently", "has other values")


def _pair(name: str, *, is_label: bool = False, dtype: type = np.float32) -> ArrayPair:
    return ArrayPair(name, np.ones((4, 2), dtype), np.zeros((4, 2), dtype), is_label, name)


@pytest.mark.parametrize("names", [["states"], ["outputs", "states"]])
def test_inputs_that_another_model_computes_are_not_compared(names: list[str]) -> None:
    stage = Stage("data", [TensorCheck("step 1: examples", 0.0)])
    assert omit_computed_inputs(stage, 2, [(_pair(name), KNOWN) for name in names])
    assert (stage.verdict, stage.causes) == (INHERITED, [])
    assert stage.omission.startswith(" and ".join(f"input {name}" for name in names))
    assert stage.note.startswith("only compared before step 2: ")


@pytest.mark.parametrize("other", [_pair("y", is_label=True), _pair("ids", dtype=np.int64)])
def test_labels_and_ids_are_compared(other: ArrayPair) -> None:
    assert not omit_computed_inputs(Stage("data"), 2, [(_pair("states"), KNOWN), (other, KNOWN)])


def _make_pair(batches: list[dict[str, dict[str, np.ndarray]]]) -> Any:
    sides = [
        SimpleNamespace(batches=SimpleNamespace(read_step=lambda _, kind, arrays=arrays: arrays.get(kind, {})))
        for arrays in batches
    ]
    return SimpleNamespace(sides=sides)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_inputs_that_a_script_computes_within_its_step_are_those_of_its_batch(is_reversed: bool) -> None:
    random = np.random.default_rng(0)
    images, noise = (random.standard_normal((6, 4)).astype(np.float32) for _ in range(2))
    noisy = 0.6 * images + 0.8 * noise
    batches = [{"input": {"x": images, "noise": noise}}, {"input": {"x": noisy}, "label": {"0": images, "2": noise}}]
    pair = ArrayPair("x", images, noisy, name_b="x")
    if is_reversed:
        batches, pair = batches[::-1], ArrayPair("x", noisy, images, name_b="x")
    (replaced,) = replace_computed_inputs([pair], _make_pair(batches), 1)
    np.testing.assert_array_equal(replaced.a, images)
    np.testing.assert_array_equal(replaced.b, images)


@pytest.mark.parametrize("factor", [1.0, 255.0])
def test_inputs_that_are_prepared_differently_stay(factor: float) -> None:
    """The batch has A's array as well, and the script scales it again before its model receives it."""
    images = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    pair = ArrayPair("x", images, factor * images, name_b="x")
    batches = [{"input": {"x": images}}, {"input": {"x": pair.b}, "other": {"0": images}}]
    assert replace_computed_inputs([pair], _make_pair(batches), 1) == [pair]
