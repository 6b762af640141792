"""Tests of the pairs of arrays of two batches, and of what shows that their examples are the same."""

from types import SimpleNamespace
from typing import cast

import numpy as np

from common.diagnose.findings import Stage
from common.diagnose.recorded.example_order import ArrayPair, pair_arrays
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.stages.data import _explain_step


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_inputs_of_one_shape_are_paired_if_one_side_scales_them() -> None:
    left, right = np.abs(draw(0, 8, 5)), 2 * np.abs(draw(1, 8, 5))
    pairs, *_ = pair_arrays({"left": left, "right": right}, {"1": right / 255, "0": left / 255})
    assert [(pair.name, pair.name_b) for pair in pairs] == [("left", "0"), ("right", "1")]


def test_one_equal_input_shows_that_the_examples_are_the_same() -> None:
    features, matrix = draw(0, 6, 5), draw(1, 6, 6)
    arrays = [ArrayPair("features", features, features), ArrayPair("adjacency", matrix, draw(2, 6, 6))]
    stage = Stage("data")
    batches = SimpleNamespace(read_step=lambda step, kind: {})
    side = SimpleNamespace(batches=batches, record=SimpleNamespace(steps=[]))
    pair = SimpleNamespace(a=side, b=side, sides=(side, side), steps=[1], has_followed=False)
    _explain_step(stage, cast(RecordPair, pair), 1, arrays)
    assert [(cause.cause, cause.tensor) for cause in stage.causes] == [("other_values", "input adjacency")]
