"""Softmax over another axis, alone and within a weighted sum of rows."""

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from common.diagnose.explain.softmax_axis import explain_log_softmax, explain_softmax, explain_weighted_sum

STREAM = np.random.default_rng(0)
SCORES = STREAM.standard_normal((4, 5, 6))
ROWS = STREAM.standard_normal((4, 6, 8))
WEIGHTS = softmax(SCORES, 2)
IS_VISIBLE = STREAM.random((4, 5, 6)) < 0.6
IS_VISIBLE[..., 0] = True
MASKED = softmax(np.where(IS_VISIBLE, SCORES, -1e300), 2)


@pytest.mark.parametrize(
    ("b", "cause", "words"),
    [
        (softmax(SCORES, 1), "softmax_axis", "is over axis 2 in A and over axis 1 in B"),
        (softmax(SCORES, 0), "softmax_axis", "is over axis 2 in A and over axis 0 in B"),
        (softmax(3 * SCORES, 2), "attention_scale", "its scores are 3 times A's in B"),
        (SCORES, "activation", "B has none"),
        (SCORES / 4, "activation", "B has none, but 0.25 times the scores"),
        (MASKED, "attention_mask", f"masks 0 elements in A and {(~IS_VISIBLE).sum()} in B"),
    ],
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_probabilities_of_the_same_scores_are_explained(
    b: np.ndarray, cause: str, words: str, dtype: type[np.floating]
) -> None:
    explanation = explain_softmax("softmax", WEIGHTS.astype(dtype), b.astype(dtype))
    assert explanation is not None
    assert (explanation.cause, explanation.confirmed) == (cause, True)
    assert words in explanation.sentence


@pytest.mark.parametrize("b", [softmax(STREAM.standard_normal((4, 5, 6)), 1), np.cos(SCORES), -(SCORES**2)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_other_scores_are_not_explained(b: np.ndarray, dtype: type[np.floating]) -> None:
    b = b.astype(dtype)
    assert explain_softmax("softmax", WEIGHTS.astype(dtype), b) is None
    assert explain_softmax("softmax", b, softmax(b**2, 2)) is None


@pytest.mark.parametrize(
    ("weights_a", "weights_b", "cause", "words"),
    [
        (WEIGHTS, softmax(SCORES, 1), "softmax_axis", "over the rows of each sum in A and over the sums in B"),
        (WEIGHTS, softmax(SCORES, 0), "softmax_axis", "over the rows of each sum in A and over the examples in B"),
        (WEIGHTS, softmax(SCORES / 2, 2), "attention_scale", "0.5 times"),
        (MASKED, WEIGHTS, "attention_mask", "masks"),
        (
            MASKED,
            softmax(np.where(IS_VISIBLE, -1e300, SCORES), 2),
            "attention_mask",
            "masks in B exactly the elements that A does not mask",
        ),
    ],
)
def test_the_weights_of_a_sum_are_recovered(
    weights_a: np.ndarray, weights_b: np.ndarray, cause: str, words: str
) -> None:
    terms = [("other rows", STREAM.standard_normal((4, 6, 8))), ("rows", ROWS)]
    for activation in (np.asarray, np.tanh):
        explanation = explain_weighted_sum("here", activation(weights_a @ ROWS), activation(weights_b @ ROWS), terms)
        assert explanation is not None
        assert explanation.cause == cause
        assert words in explanation.sentence and "the rows of rows" in explanation.sentence


def test_more_rows_than_features_and_other_sums_are_not_explained() -> None:
    many_rows = STREAM.standard_normal((4, 6, 3))
    assert explain_weighted_sum("here", WEIGHTS @ many_rows, softmax(SCORES, 1) @ many_rows, [("", many_rows)]) is None
    assert explain_weighted_sum("here", STREAM.standard_normal((4, 5, 8)), WEIGHTS @ ROWS, [("", ROWS)]) is None


def test_classes_and_gates_of_single_experts_are_no_masks() -> None:
    first, second = np.eye(7)[[0, 1, 2, 3, 0]], np.eye(7)[[1, 2, 3, 1, 2]]
    assert explain_softmax("softmax", first, second) is None
    assert explain_softmax("softmax", np.eye(2)[[0, 1, 0]], np.eye(2)[[1, 0, 1]]) is None
    gates = (first + second) / 2
    assert explain_softmax("softmax", first, gates) is None


@pytest.mark.parametrize(("axis", "words"), [(0, "log_softmax over the examples"), (1, "log_softmax over axis 1")])
@pytest.mark.parametrize("side", ["a", "b"])
def test_log_softmax_over_another_axis_than_the_last_is_named(axis: int, words: str, side: str) -> None:
    arrays = SCORES, log_softmax(SCORES, axis)
    explanation = explain_log_softmax("before the outputs", *(arrays if side == "b" else arrays[::-1]))
    assert explanation is not None
    assert (explanation.cause, explanation.side) == ("softmax_axis", side)
    assert explanation.sentence == f"before the outputs: {side.upper()} computes {words}"
    assert explain_log_softmax("", SCORES, log_softmax(SCORES, 2)) is None
