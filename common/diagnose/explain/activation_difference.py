"""Activations that the code between two layers may apply, and the search for the one that computes an array."""

from collections.abc import Callable

import numpy as np
from scipy.optimize import least_squares
from scipy.special import erf, expit, log_softmax, logit, softmax

from common.diagnose.rounding import is_close

FITTED_ELEMENTS = 256  # number of elements to which the factor of an elementwise activation is fitted
LEAST_ELEMENTS = 8  # smallest size of an array to which a factor is fitted
LARGEST_RESIDUAL = 1e100  # whose square is a number, as the fit of a factor needs it
FITTED_ROWS = 8  # number of rows to which the factor of a softmax is fitted
NO_ACTIVATION = "no activation"
LEAKY_RELU = "leaky relu of slope "  # start of the names of leaky ReLUs; the slope follows

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
    "hard sigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hard sigmoid of slope 0.2": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "hard swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0))),
    "log sigmoid": lambda x: -np.logaddexp(0, -x),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "the absolute value": np.abs,
    "the square": np.square,
    "squared relu": lambda x: np.maximum(x, 0) ** 2,
    "exp": np.exp,
    "log1p": np.log1p,
    "log": np.log,
    "the square root": np.sqrt,
}
# Activations without a search for a scale of the argument: a scale would only scale the result, or never fit
WITHOUT_SCALE = (NO_ACTIVATION, "the absolute value", "the square", "squared relu", "log", "the square root")
# The inverse of each activation that has one, by name
INVERSES: dict[str, ActivationFunction] = {
    "tanh": np.arctanh,
    "sigmoid": logit,
    "softplus": lambda y: y + np.log(-np.expm1(-y)),
    "elu": lambda y: np.where(y > 0, y, np.log1p(np.minimum(y, 0))),
    "exp": np.log,
    "log sigmoid": lambda y: -np.log(np.expm1(-y)),
}


def find_activation(x: np.ndarray, result: np.ndarray) -> str | None:
    """Return the name of the activation that computes the result from x, or None if no activation does."""
    if x.shape != result.shape:
        return None
    with np.errstate(all="ignore"):
        name = next((name for name, function in ACTIVATIONS.items() if _computes(function, x, result)), None)
    return name or _find_leaky_relu(x, result)


def find_changed_activation(a: np.ndarray, b: np.ndarray) -> tuple[str, str] | None:
    """Return the names of activations (f_a, f_b) with a = f_a(x) and b = f_b(x) for an unknown x, or None.

    One of the two is NO_ACTIVATION or has an inverse, so that x is known from a or b.
    """
    if (
        a.shape != b.shape or is_close(a, b) or not (np.ptp(a) and np.ptp(b))
    ):  # an array of one repeated number fits by chance
        return None
    if name := find_activation(a, b):
        return NO_ACTIVATION, name
    if name := find_activation(b, a):
        return name, NO_ACTIVATION
    with np.errstate(all="ignore"):
        for name, invert in INVERSES.items():
            for is_swapped, (result, other) in enumerate(((a, b), (b, a))):
                x = invert(result)
                if np.isfinite(x).all() and (other_name := find_activation(x, other)):
                    return (other_name, name) if is_swapped else (name, other_name)
    return None


def _computes(function: ActivationFunction, x: np.ndarray, result: np.ndarray) -> bool:
    """Check whether a function computes the result from x, first for the last row of x alone."""
    return is_close(function(x[-1:]), result[-1:]) and is_close(function(x), result)


def _find_leaky_relu(x: np.ndarray, result: np.ndarray) -> str | None:
    """Return the name of a leaky ReLU of any slope that computes the result, or None."""
    is_negative = x < 0
    if np.count_nonzero(is_negative) < 2:  # any slope fits a single number
        return None
    slope = float((x[is_negative] * result[is_negative]).sum() / (x[is_negative] ** 2).sum())
    is_leaky = 0 < slope < 1 and is_close(np.where(is_negative, slope * x, x), result)
    return f"{LEAKY_RELU}{slope:.6g}" if is_leaky else None


def find_scaled_activation(x: np.ndarray, result: np.ndarray) -> str | None:
    """Return the name of an activation f with result = f(c * x) for some number c, or None."""
    if x.shape != result.shape or x.size < LEAST_ELEMENTS or not result.any() or not np.isfinite(x + result).all():
        return None
    rows = [array.reshape(-1, array.shape[-1])[:FITTED_ROWS] for array in (x, result)]
    sampled_indices = np.linspace(0, x.size - 1, min(x.size, FITTED_ELEMENTS)).astype(int)
    elements = [array.ravel()[sampled_indices] for array in (x, result)]
    with np.errstate(all="ignore"):
        for name, function in ACTIVATIONS.items():
            if name in WITHOUT_SCALE:
                continue
            fitted_x, fitted_result = rows if "softmax" in name else elements
            factor = _fit_factor(function, fitted_x, fitted_result)
            if is_close(function(factor * fitted_x), fitted_result) and is_close(function(factor * x), result):
                return name if np.isclose(factor, 1) else f"{name} of {factor:.6g} times its input"
    return None


def _fit_factor(function: ActivationFunction, x: np.ndarray, result: np.ndarray) -> float:
    """Return the factor for which function(factor * x) comes closest to the result."""

    def compute_residuals(factor: np.ndarray) -> np.ndarray:
        residuals = np.nan_to_num((function(factor * x) - result).astype(np.float64))
        return np.clip(residuals, -LARGEST_RESIDUAL, LARGEST_RESIDUAL).ravel()

    return float(least_squares(compute_residuals, 1.0, ftol=1e-15, xtol=1e-15, gtol=1e-15).x[0])
