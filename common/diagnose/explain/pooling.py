"""Poolings that turn the features of tokens or pixels into the features of an example."""

import math
from collections.abc import Mapping

import numpy as np

from common.diagnose.explain.activation_difference import ACTIVATIONS
from common.diagnose.rounding import is_close

ACTIVATIONS_BEFORE_POOLING = ("no activation", "relu", "tanh", "exact gelu")


def find_pooling(x: np.ndarray, result: np.ndarray, masks: Mapping[str, np.ndarray]) -> str | None:
    """Return the name of the pooling that computes the result from x, possibly after an activation, or None.

    The name includes the pooled axes if the number of features fits both layouts of x.

    Args:
        x: Features [n, ..., features] or [n, features, ...].
        result: Pooled features [n, features].
        masks: Masks [n, tokens] by name, 1 for a token that may count.
    """
    if x.ndim < 3 or result.ndim != 2:
        return None
    layouts = ((x, tuple(range(1, x.ndim - 1))), (np.moveaxis(x, 1, -1), tuple(range(2, x.ndim))))
    fitting = [(array, axes) for array, axes in layouts if result.shape == (len(x), array.shape[-1])]
    for features_last, axes in fitting:
        place = f" along {' and '.join(f'axis {axis}' for axis in axes)}" if len(fitting) > 1 else ""
        for activation in ACTIVATIONS_BEFORE_POOLING:
            candidates = _pool(ACTIVATIONS[activation](features_last), masks)
            name = next((name for name, candidate in candidates.items() if is_close(candidate, result)), None)
            if name is not None:
                return name + place
    return None


def _pool(x: np.ndarray, masks: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return all known poolings of x [n, ..., features] to [n, features], by name in reports."""
    axes = tuple(range(1, x.ndim - 1))
    pooled = {"the mean": x.mean(axes), "the maximum": x.max(axes), "the sum": x.sum(axes)}
    for title, correction in (("n", 0), ("n - 1", 1)):
        if math.prod(x.shape[1:-1]) > correction:
            variance = x.var(axes, ddof=correction)
            pooled |= {f"the variance with the divisor {title}": variance}
            pooled |= {f"the standard deviation with the divisor {title}": np.sqrt(variance)}
    if x.ndim != 3:
        return pooled
    pooled |= {"the first token": x[:, 0], "the last token": x[:, -1]}
    for name, mask in masks.items():
        if mask.shape == x.shape[:2]:
            weights = mask[..., None]
            last_token = np.maximum(mask.sum(1).astype(int) - 1, 0)
            pooled[f"the mean where {name} is 1"] = (x * weights).sum(1) / np.maximum(weights.sum(1), 1)
            pooled[f"the maximum where {name} is 1"] = np.where(weights > 0, x, -np.inf).max(1)
            pooled[f"the last token where {name} is 1"] = x[np.arange(len(x)), last_token]
    return pooled
