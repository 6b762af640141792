"""Activations that the code between two layers may apply, and the search for the one that computes an array."""

from collections.abc import Callable

import numpy as np
from scipy.optimize import least_squares
from scipy.special import erf, expit, log_softmax, softmax

from common.diagnose.rounding import is_close

FITTED_ROWS = 8  # number of examples, or tokens, that a factor is fitted to
NO_ACTIVATION = "no activation"

ActivationFunction = Callable[[np.ndarray], np.ndarray]

ACTIVATIONS: dict[str, ActivationFunction] = {
    NO_ACTIVATION: lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "exact gelu": lambda x: x * (1 + erf(x / np.sqrt(2))) / 2,
    "gelu's tanh approximation": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "gelu's sigmoid approximation": lambda x: x * expit(1.702 * x),
    "tanh": np.tanh,
    "sigmoid": expit,
    "silu": lambda x: x * expit(x),
    "softplus": lambda x: np.logaddexp(0, x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "leaky relu of slope 0.01": lambda x: np.where(x > 0, x, 0.01 * x),
    "leaky relu of slope 0.2": lambda x: np.where(x > 0, x, 0.2 * x),
    "leaky relu of slope 0.3": lambda x: np.where(x > 0, x, 0.3 * x),
    "softmax": lambda x: softmax(x, -1),
    "log_softmax": lambda x: log_softmax(x, -1),
}


def find_activation(x: np.ndarray, result: np.ndarray) -> str | None:
    """Return the name of the activation that computes the result from x, or None if no activation does."""
    if x.shape != result.shape:
        return None
    return next((name for name, function in ACTIVATIONS.items() if is_close(function(x), result)), None)


def find_scaled_activation(x: np.ndarray, result: np.ndarray) -> str | None:
    """Return the activation that computes the result from x after a multiplication of x by some factor, or None."""
    if x.shape != result.shape or not result.any() or not np.isfinite(x + result).all():
        return None
    for name, function in ACTIVATIONS.items():
        factor = _fit_factor(function, x[:FITTED_ROWS], result[:FITTED_ROWS])
        if name != NO_ACTIVATION and is_close(function(factor * x), result):
            return name if np.isclose(factor, 1) else f"{name} of {factor:.6g} times its input"
    return None


def _fit_factor(function: ActivationFunction, x: np.ndarray, result: np.ndarray) -> float:
    """Return the factor for which function(factor * x) comes closest to the result."""
    fit = least_squares(lambda factor: (function(factor * x) - result).ravel(), 1.0, ftol=1e-15, xtol=1e-15, gtol=1e-15)
    return float(fit.x[0])
