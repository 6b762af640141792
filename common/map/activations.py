"""Recognition of activation functions by their inputs and outputs.

It tells apart the exact GELU in one model and its tanh approximation in the other, for example.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

from common.map.description import RecordedCall

TOLERANCE = 1e-13  # largest difference from an activation's outputs, relative to the largest output
_erf = np.frompyfunc(math.erf, 1, 1)


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.asarray(_erf(x / math.sqrt(2)), np.float64)) / 2


def _gelu_tanh(x: np.ndarray, factor: float = math.sqrt(2 / math.pi)) -> np.ndarray:
    return x * (1 + np.tanh(factor * (x + 0.044715 * x**3))) / 2


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -x))


def _log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


ACTIVATIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "no activation": lambda x: x,  # found for a ReLU of positive inputs, too, because it changes nothing
    "the exact GELU": _gelu,
    "the tanh approximation of GELU": _gelu_tanh,
    "the tanh approximation of GELU with 0.79788456 instead of sqrt(2 / pi)": lambda x: _gelu_tanh(x, 0.79788456),
    "the sigmoid approximation of GELU": lambda x: x * _sigmoid(1.702 * x),
    "ReLU": lambda x: np.maximum(x, 0),
    "ReLU6": lambda x: np.clip(x, 0, 6),
    "SiLU": lambda x: x * _sigmoid(x),
    "ELU": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "the sigmoid": _sigmoid,
    "tanh": np.tanh,
    "softplus": lambda x: np.logaddexp(0, x),
    "softmax": lambda x: np.exp(_log_softmax(x)),
    "log-softmax": _log_softmax,
    "LeakyReLU with a slope of 0.01": lambda x: np.where(x > 0, x, 0.01 * x),
    "LeakyReLU with a slope of 0.2": lambda x: np.where(x > 0, x, 0.2 * x),
    "LeakyReLU with a slope of 0.3": lambda x: np.where(x > 0, x, 0.3 * x),
}


def explain_activations(
    torch_before: RecordedCall, torch_after: RecordedCall, keras_before: RecordedCall, keras_after: RecordedCall
) -> str | None:
    """Return a sentence if the models apply different known activations between the same two layers; None otherwise.

    The caller appends after which layers it is.

    Args:
        torch_before: The call of the layer before the activation in PyTorch's model.
        torch_after: The call of the layer after the activation in PyTorch's model.
        keras_before: The call of the layer before the activation in Keras's model.
        keras_after: The call of the layer after the activation in Keras's model.
    """
    torch_name, keras_name = _find_activation(torch_before, torch_after), _find_activation(keras_before, keras_after)
    if torch_name is None or keras_name is None or torch_name == keras_name:
        return None
    return f"PyTorch computes {torch_name}, Keras {keras_name}"


def _find_activation(before: RecordedCall, after: RecordedCall) -> str | None:
    """Return the name of the activation between two layers: from the output of `before` to the input of `after`.

    Return None if it is unknown.
    """
    inputs, outputs = before.returned, after.received
    if inputs is None or outputs is None or not inputs.size or inputs.size != outputs.size:
        return None
    if inputs.shape != outputs.shape:
        inputs, outputs = inputs.ravel(), outputs.ravel()
    limit = TOLERANCE * np.abs(outputs).max(initial=0)
    return next(
        (name for name, compute in ACTIVATIONS.items() if np.abs(compute(inputs) - outputs).max(initial=0) <= limit),
        None,
    )
