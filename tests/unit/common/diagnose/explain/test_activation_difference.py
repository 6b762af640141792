"""Activations of code between two layers."""

import numpy as np
import pytest

from common.diagnose.explain.activation_difference import (
    ACTIVATIONS,
    NO_ACTIVATION,
    find_activation,
    find_changed_activation,
    find_scaled_activation,
)

OF_POSITIVE_NUMBERS = ("log1p", "log", "the square root")
X = np.random.default_rng(0).standard_normal((4, 6, 8))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_found(name: str) -> None:
    x = X * 4  # relu and relu6 agree on small values
    x = np.abs(x) if name in OF_POSITIVE_NUMBERS else x
    assert find_activation(x, ACTIVATIONS[name](x)) == name


@pytest.mark.parametrize("name", ["tanh", "exact gelu", "relu", "softmax", "log_softmax"])
@pytest.mark.parametrize("factor", [0.125, 2.0])
def test_a_factor_inside_an_activation_is_found(name: str, factor: float) -> None:
    assert find_scaled_activation(X, ACTIVATIONS[name](factor * X)) == f"{name} of {factor:g} times its input"
    assert find_scaled_activation(X, ACTIVATIONS[name](X)) == name


def test_other_functions_are_not_found() -> None:
    assert find_activation(X, X**3) is None
    assert find_scaled_activation(X, X**3) is None
    assert find_scaled_activation(1e12 * X, 1e30 * X**3) is None  # whose squares are no numbers of float32
    assert find_scaled_activation(X, 2 * X) is None
    assert find_activation(X, X[:, 0]) is None


def test_a_slope_is_not_fitted_to_one_number() -> None:
    x = np.array([[1.0, -1.0, 2.0, 3.0]])
    assert find_activation(x, np.array([[1.0, 5.0, 2.0, 3.0]])) is None
    assert find_activation(x, np.array([[1.0, -0.3, 2.0, 3.0]])) == "leaky relu of slope 0.3"
    assert find_activation(X, np.where(X < 0, -5 * X, X)) is None
    assert find_scaled_activation(x, np.tanh(1.5 * x)) is None


def test_one_number_shows_no_activation() -> None:
    x = np.abs(np.random.default_rng(0).standard_normal((8, 6)))
    assert find_changed_activation(np.tanh(x), np.zeros_like(x)) is None


def test_a_square_of_positive_values_is_called_the_square() -> None:
    x = np.abs(np.random.default_rng(0).standard_normal((8, 6)))
    assert find_changed_activation(x, x**2) == (NO_ACTIVATION, "the square")


def test_a_function_of_positive_numbers_is_found() -> None:
    x = np.abs(X) + 0.1
    for name in OF_POSITIVE_NUMBERS:
        assert find_changed_activation(x, ACTIVATIONS[name](x)) == (NO_ACTIVATION, name)
    assert find_scaled_activation(x, np.log1p(0.5 * x)) == "log1p of 0.5 times its input"
