"""Tests of the first step in which a stage differs: an earlier step inherits nothing from it."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.diagnose.findings import Stage, TensorCheck
from common.diagnose.recorded.example_order import are_close
from common.diagnose.recorded.record_pair import RecordPair


@pytest.mark.parametrize(
    ("tensors", "first"),
    [
        ([], math.inf),
        (["step 2: fc.weight", "A, step 3: clipping"], 2),
        (["A, step 3: clipping"], 3),
        (["A: rows of embedding", "step 2: loss"], 0),
    ],
)
def test_a_difference_of_no_single_step_counts_as_the_first(tensors: list[str], first: float) -> None:
    checks = [TensorCheck("step 1: loss", 0.0), *(TensorCheck(tensor, 0.5) for tensor in tensors)]
    pair: Any = SimpleNamespace(stages=[Stage("reduction", checks), Stage("state", [TensorCheck("step 1: fc", 1.0)])])
    assert RecordPair.find_first_difference(pair, "reduction", "loss") == first


def test_masks_are_compared() -> None:
    """NumPy subtracts no bools."""
    mask = np.array([[True, False], [True, True]])
    assert are_close(mask, mask)
    assert not are_close(mask, ~mask)
