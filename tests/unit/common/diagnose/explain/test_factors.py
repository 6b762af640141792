"""Factors between two arrays, and their reasons."""

import numpy as np
import pytest

from common.diagnose.explain.between_layers import explain_code
from common.diagnose.explain.code_section import CodeSection, LayerOutput
from common.diagnose.explain.factors import explain_factor, explain_lines

A = np.random.default_rng(0).standard_normal((8, 4))
IMAGES = np.random.default_rng(1).random((2, 3, 4, 4))
FACTORS, SHIFTS = np.array([1, 2, -3, 4]), np.array([0, 0.5, 0, -1])
TERMS = [("x", np.zeros((8, 4, 64)))]


@pytest.mark.parametrize(
    ("factor", "reason"),
    [
        (4, ": perhaps the size of axis 1 of x, as by a sum instead of a mean"),
        (1 / 64, ": perhaps 1 / the size of axis 2 of x, as by a mean instead of a sum"),
        (1 / 8, ": perhaps 1 / the root of the size of axis 2 of x"),
        (2, ""),  # not the root of 4
        (8**0.5, ""),  # not of the number of examples
    ],
)
def test_the_factor_has_a_reason_if_a_size_equals_it(factor: float, reason: str) -> None:
    explanation = explain_factor("input", A, factor * A, TERMS)
    assert explanation is not None
    assert explanation.sentence == f"input is {factor:.6g} times A's{reason}"


@pytest.mark.parametrize(
    ("a", "b", "cause", "words"),
    [
        (A, 2 * A - 0.5, "scaled_inputs", "input is 2 times A's, plus -0.5"),
        (A, FACTORS * A + SHIFTS, "normalization", ": 1 x +0, 2 x +0.5, -3 x +0 and 1 more"),
        (
            IMAGES,
            IMAGES * FACTORS[:3, None, None] + SHIFTS[:3, None, None],
            "normalization",
            "another mean and deviation: 1 x +0, 2 x +0.5, -3 x +0",
        ),
    ],
)
def test_features_that_are_scaled_and_shifted_are_named(a: np.ndarray, b: np.ndarray, cause: str, words: str) -> None:
    """The features are in the last axis, or the channels of images in axis 1."""
    explanation = explain_lines("input", a, b.astype(np.float32))
    assert explanation is not None
    assert (explanation.cause, explanation.confirmed) == (cause, True)
    assert explanation.sentence.endswith(words)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (A, A * (1 + 1e-5) + 1e-5 * np.random.default_rng(2).standard_normal(A.shape)),
        (A, np.ones_like(A)),
        (A, np.tanh(A)),
        (A[:4], 2 * A[:4] - 0.5),
    ],
    ids=["tiny", "constant", "no line", "few rows"],
)
def test_other_features_lie_on_no_line(a: np.ndarray, b: np.ndarray) -> None:
    assert explain_lines("input", a, b) is None


@pytest.mark.parametrize("is_first", [True, False])
def test_only_inputs_of_the_model_are_normalized_differently(is_first: bool) -> None:
    """After a layer, a line for each feature is a layer of the script, such as another normalization."""
    outputs = [] if is_first else [LayerOutput("norm", np.sort(A, 0), A, A)]
    (explanation,) = explain_code(CodeSection("input of head", "head", A, FACTORS * A + SHIFTS, outputs, {}))
    assert (explanation.cause == "normalization") == is_first


@pytest.mark.parametrize("lost", [[0], [1, 3], [0, 1, 2, 3]])
def test_a_feature_that_is_lost_is_no_normalization(lost: list[int]) -> None:
    """It may be a state in place of which there is padding."""
    factors = np.where(np.isin(np.arange(4), lost), 0, FACTORS)
    assert explain_lines("input", A, factors * A + SHIFTS) is None


def test_a_feature_that_is_constant_in_both_arrays_is_not_lost() -> None:
    a = np.where(np.arange(4) == 1, 2.0, A)
    explanation = explain_lines("input", a, FACTORS * a + SHIFTS)
    assert explanation is not None
    assert explanation.cause == "normalization"
