"""Tests of the pairs of arrays of two batches, and of what shows that their examples are the same."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from scipy.special import softmax

from common.diagnose.findings import Stage
from common.diagnose.recorded.array_layouts import convert_to_layout
from common.diagnose.recorded.example_order import ArrayPair, pair_arrays
from common.diagnose.recorded.record_pair import RecordPair
from common.diagnose.recorded.stages import data
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


def test_images_of_another_model_may_be_rounded_in_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small numbers of an image differ by more than their own rounding."""
    images = np.concatenate([draw(0, 4, 5), 1e-4 * draw(1, 4, 5)])
    arrays = [ArrayPair("input 0", images, images + np.float32(1e-6) * draw(2, 8, 5))]
    monkeypatch.setattr(data, "_pair_step", lambda *_: arrays)
    monkeypatch.setattr(data, "explain_reset", lambda *_: None)
    monkeypatch.setattr(data, "describe_other_pairs", lambda *_: "")
    monkeypatch.setattr(data, "compare_weights_in_loss", lambda *_: None)
    monkeypatch.setattr(data, "compare_partial_labels", lambda *_: None)
    monkeypatch.setattr(data, "find_differing_call", lambda *_: None)
    monkeypatch.setattr(data, "_explain_step", lambda *_: None)
    for has_several, expected in ((True, True), (False, False)):
        monkeypatch.setattr(data, "has_several_calls", lambda *_, has_several=has_several: has_several)
        pair = SimpleNamespace(a=None, b=None, steps=[1], orders={})
        assert data._compare_step(Stage("data"), cast(RecordPair, pair), 1) == expected


def test_classes_in_a_column_are_those_of_codes() -> None:
    """The index of `gather` is a column, and the other script has one-hot labels."""
    classes = np.array([2, 0, 1, 2])
    codes = np.eye(3, dtype=np.float32)[classes]
    np.testing.assert_array_equal(convert_to_layout(classes[:, None], codes), codes)
    np.testing.assert_array_equal(convert_to_layout(codes, classes[:, None]), classes[:, None])
    smoothed = codes * 0.9 + 0.05
    assert convert_to_layout(classes[:, None], smoothed).shape == (4, 1)


def test_outputs_in_another_order_are_paired_by_their_sizes_and_values() -> None:
    boxes, scores, offsets, classes = draw(0, 4, 6, 4), draw(1, 4, 6, 5), draw(2, 4, 6, 4), draw(3, 4, 7)
    a = {"0": boxes, "1": scores, "2": offsets, "3": classes}
    b = {"0": scores, "1": offsets, "2": boxes, "3": softmax(classes, 1)}
    pairs, *_ = pair_arrays(a, b, are_outputs=True)
    assert [(pair.name, pair.name_b) for pair in pairs] == [("0", "2"), ("1", "0"), ("2", "1"), ("3", "3")]


def test_probabilities_are_paired_with_the_logits_of_one_of_several_heads() -> None:
    main, auxiliary = draw(0, 4, 7), draw(1, 4, 7)
    a, b = {"0": main, "1": auxiliary}, {"0": softmax(auxiliary, 1), "1": softmax(main, 1)}
    assert [pair.name_b for pair in pair_arrays(a, b, are_outputs=True)[0]] == ["1", "0"]
    inputs = pair_arrays({"0": main, "1": auxiliary}, {"0": auxiliary, "1": main})[0]
    assert [pair.name_b for pair in inputs] == ["0", "1"]


def test_levels_of_an_ordinal_regression_are_its_classes() -> None:
    classes = np.array([0, 2, 3, 1])
    levels = np.array([[0, 0, 0], [1, 1, 0], [1, 1, 1], [1, 0, 0]], np.float32)
    np.testing.assert_array_equal(convert_to_layout(levels, classes), classes)
    np.testing.assert_array_equal(convert_to_layout(classes, levels), levels)
