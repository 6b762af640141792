"""Factors by which a clipping multiplies gradients. A record holds the factors and the clipped gradients only.

These functions run in the environment of the script that is recorded, and in the reader of its record.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from common.recording.array_norms import iterate_blocks, sum_products, sum_squares

# Largest error of an element after the multiplication, in roundings of the element. In float64 it is larger, because
# the sums from which the factor is computed have rounding errors, too.
FLOAT32_ROUNDINGS, FLOAT64_ROUNDINGS = 4, 256


def find_factor(before: np.ndarray, after: np.ndarray, noise_roundings: float = 0.0) -> float | None:
    """Return the factor by which a gradient was multiplied; None if one factor does not explain all elements.

    Args:
        before: The gradient before it was multiplied, in float32 or float64.
        after: The gradient afterwards.
        noise_roundings: The errors of the elements, in roundings of the largest element of the gradient afterwards.
            Without them, the elements may only differ by a rounding of their own.
    """
    if before.shape != after.shape or not before.size:
        return None
    is_float64 = after.dtype == np.float64
    precision = np.finfo(np.float64 if is_float64 else np.float32)
    roundings = FLOAT64_ROUNDINGS if is_float64 else FLOAT32_ROUNDINGS
    rounding, smallest = float(precision.eps), float(precision.tiny)  # smaller numbers have fewer digits
    with np.errstate(invalid="ignore", over="ignore"):
        squares = sum_squares(before)
        factor = sum_products(before, after) / squares if squares and np.isfinite(squares) else 0.0
        if not (np.isfinite(factor) and factor > 0):
            return None
        largest = max(float(after.max()), -float(after.min()))
        if not largest > smallest / rounding:
            return None
        noise = smallest + noise_roundings * rounding * largest
        for block, expected in iterate_blocks(before, after):
            error = np.abs(np.multiply(block, factor, dtype=np.float64) - expected)
            if not (error <= roundings * rounding * np.abs(expected) + noise).all():
                return None
    return factor


def restore_gradients(clipped: Mapping[str, np.ndarray], factors: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Return the gradients before they were multiplied by factors, up to a rounding."""
    with np.errstate(over="ignore"):
        return {
            name: (clipped[name].astype(np.float64) / factor).astype(clipped[name].dtype)
            for name, factor in factors.items()
            if name in clipped
        }
