"""The epsilon of a normalization layer, which is added to the variance before the square root.

A is the reference run of a diagnosis, and B the run that is compared with it.
"""

from collections.abc import Mapping

import numpy as np

from common.diagnose.layer_match import LayerMatch
from common.diagnose.rounding import is_close
from common.map.description import RecordedCall


def find_epsilon(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, result: np.ndarray) -> float | None:
    """Return the epsilon with which a layer norm computes the result from x, or None if no epsilon does.

    Args:
        x: Input [n, ..., features].
        gamma: Weight [features].
        beta: Bias [features].
        result: Output of the layer.
    """
    if x.shape != result.shape or gamma.shape != x.shape[-1:]:
        return None
    centered, variance = x - x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):  # a result may be constant
        variance_plus_epsilon = (centered**2 * gamma**2).sum(-1, keepdims=True) / ((result - beta) ** 2).sum(
            -1, keepdims=True
        )
        epsilon = max(0.0, float(np.median(variance_plus_epsilon - variance)))
        normalized = centered / np.sqrt(variance + epsilon) * gamma + beta
    return epsilon if is_close(normalized, result) else None


def epsilons_explain(layer: LayerMatch, a: RecordedCall, b: RecordedCall, weights: Mapping[str, np.ndarray]) -> bool:
    """Check whether the epsilons in the settings of two layers reproduce their outputs; layer and batch norms only.

    Args:
        layer: The pair of layers.
        a: The input and the output of A's layer.
        b: The same for B's layer, which received A's array.
        weights: Weights by parameter name.
    """
    x, gamma = a.received, weights.get(f"{layer.name}.weight")
    if layer.kind not in ("layer norm", "batch norm") or x is None or gamma is None:
        return False
    channel_axis = x.ndim - 1 if layer.kind == "layer norm" or x.shape[-1] == len(gamma) else 1
    shape = [len(gamma) if axis == channel_axis else 1 for axis in range(x.ndim)]
    axes = (-1,) if layer.kind == "layer norm" else tuple(axis for axis in range(x.ndim) if axis != channel_axis)
    statistics = [(x.mean(axes, keepdims=True), x.var(axes, keepdims=True))]
    moving = [weights.get(f"{layer.name}.running_{name}") for name in ("mean", "var")]
    if layer.kind == "batch norm" and moving[0] is not None and moving[1] is not None:  # in evaluation
        statistics.append((moving[0].reshape(shape), moving[1].reshape(shape)))
    beta = weights.get(f"{layer.name}.bias", np.zeros_like(gamma)).reshape(shape)

    def is_explained(mean: np.ndarray, variance: np.ndarray) -> bool:
        for settings, call in ((layer.settings_a, a), (layer.settings_b, b)):
            epsilon = float(np.asarray(settings["epsilon"], np.float64))
            normalized = (x - mean) / np.sqrt(variance + epsilon) * gamma.reshape(shape) + beta
            if call.returned is None or not is_close(normalized, call.returned):
                return False
        return True

    return any(is_explained(mean, variance) for mean, variance in statistics)
