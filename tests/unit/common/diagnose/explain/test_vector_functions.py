"""Functions of the vectors along an axis that one side lacks, or that both apply along other axes."""

import numpy as np
import pytest
from scipy.special import softmax

from common.diagnose.explain.between_layers import explain_code
from common.diagnose.explain.code_section import CodeSection, LayerOutput
from common.diagnose.explain.vector_functions import explain_vector_function

STREAM = np.random.default_rng(0)
X = STREAM.standard_normal((3, 5, 4, 6)) + 0.3
PADDED = X * (np.arange(5) < 3)[:, None, None]


def normalize(x: np.ndarray, axis: int | tuple[int, ...], epsilon: float = 0.0) -> np.ndarray:
    return np.asarray(x / (np.sqrt((x**2).sum(axis, keepdims=True)) + epsilon))


def squash(x: np.ndarray, axis: int | tuple[int, ...], epsilon: float = 0.0) -> np.ndarray:
    square = (x**2).sum(axis, keepdims=True)
    return np.asarray(square / (1 + square) * x / np.sqrt(square + epsilon))


def standardize(x: np.ndarray, axis: int | tuple[int, ...], epsilon: float = 0.0) -> np.ndarray:
    return np.asarray((x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + epsilon))


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (normalize(X, 3, 1e-8), X, "A has L2 normalization over axis 3 at the end, B does not"),
        (X, squash(X, 2, 1e-8), "B has squash over axis 2 at the end, A does not"),
        (normalize(PADDED, 3, 1e-300), PADDED, "A has L2 normalization over axis 3"),
        (X, softmax(X, 0), "B has softmax over axis 0"),
        (X, softmax(X, (1, 2)), "B has softmax over axis 1 and axis 2"),
        (standardize(X, (1, 2), 1e-3), X, "A has standardization with epsilon 0.001 over axis 1 and axis 2"),
        (X - X.mean(3, keepdims=True), X, "A has subtraction of the mean over axis 3"),
        (np.abs(X), np.abs(X) / X.size * np.abs(X).sum(), ""),  # a factor for the whole array is no such function
        (normalize(X, 3), normalize(X, 1), "L2 normalization is over axis 3 in A and over axis 1 in B"),
        (squash(X, 3), squash(X, (1, 2)), "squash is over axis 3 in A and over axis 1 and axis 2 in B"),
        (normalize(X, 3), normalize(X**3, 1), ""),
        (squash(X, 3), squash(X + 0.1, 1), ""),
        (X, 0 * X, ""),
    ],
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_function_and_its_axes_are_named(
    a: np.ndarray, b: np.ndarray, words: str, dtype: type[np.floating]
) -> None:
    explanation = explain_vector_function("before head", a.astype(dtype), b.astype(dtype))
    assert (explanation is not None) == bool(words)
    if explanation is not None:
        assert explanation.cause == "vector_function" and explanation.confirmed
        assert explanation.sentence.startswith("before head: ") and words in explanation.sentence


def test_functions_of_the_last_output_are_compared() -> None:
    a, b = standardize(X, (1, 2), 1e-5), standardize(X, (1, 2), 1e-3)
    (explanation,) = explain_code(CodeSection("input of head", "head", a, b, [LayerOutput("norm", X)], {}))
    assert explanation.cause == "vector_function"
    assert "A has standardization with epsilon 1e-05 over axis 1 and axis 2, B standardization with epsilon 0.001" in (
        explanation.sentence
    )


def test_a_missing_squash_of_reshaped_features_is_named() -> None:
    capsules = np.maximum(X, 0).reshape(3, 20, 6)
    section = CodeSection("input of u", "u", squash(capsules, 2, 1e-30), capsules, [LayerOutput("primary", X)], {})
    (explanation,) = explain_code(section)
    assert explanation.sentence == "between primary and u: A has squash over axis 2 at the end, B does not"


@pytest.mark.slow
def test_softmax_over_places_instead_of_channels_is_named() -> None:
    x = STREAM.standard_normal((3, 5, 4, 6))
    a, b = softmax(x, (1, 2)), softmax(x, 3)
    (explanation,) = explain_code(CodeSection("outputs", "the outputs", a, b, [], {}))
    assert explanation.cause == "softmax_axis"
    assert "softmax is over axis 1 and axis 2 in A and over axis 3 in B" in explanation.sentence


def test_softmax_of_the_last_output_over_another_axis_is_named() -> None:
    a, b = softmax(X, 3), softmax(X, 1)
    (explanation,) = explain_code(CodeSection("input of head", "head", a, b, [LayerOutput("scores", X)], {}))
    assert explanation.cause == "softmax_axis"


def test_weights_that_are_divided_by_their_sum_are_no_softmax() -> None:
    weights = np.abs(X[..., 0].reshape(3, 20))
    a = weights / weights.sum(1, keepdims=True)
    (explanation,) = explain_code(CodeSection("input of head", "head", a, weights, [], {}))
    assert explanation.sentence == "before head: A has division by the sum over axis 1 at the end, B does not"
