"""Tests of batches and inputs that a following script changes or computes."""

import numpy as np
import pytest

from common.diagnose.findings import INHERITED, Explanation, Stage, TensorCheck
from common.diagnose.recorded.changed_batches import omit_computed_inputs
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
