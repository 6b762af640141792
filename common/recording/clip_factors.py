"""Changes of gradients before the update: factors of a clipping, and multiples of the weights that a script adds.

A record holds these numbers and the gradients that the optimizer received, in place of the gradients before the change.
These functions run in the environment of the script that is recorded, and in the reader of its record.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from common.recording.array_norms import iterate_blocks, sum_products, sum_squares

# Largest error of an element after the multiplication, in roundings of the element. In float64 it is larger, because
# the sums from which the factor is computed have rounding errors, too.
FLOAT32_ROUNDINGS, FLOAT64_ROUNDINGS = 4, 256
# Number of elements from which a factor and a decay together explain a gradient: fewer have them by chance
MIN_EXPLAINED_SIZE = 3
SMALLEST_ANGLE = 1e-3  # smallest squared sine between a gradient and the weights of which both shares are known


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


def find_decay(before: np.ndarray, after: np.ndarray, weight: np.ndarray) -> tuple[float, float] | None:
    """Return (factor, decay) with `after = factor * before + decay * weight`; None if they do not explain all elements.

    Args:
        before: The gradient before it was changed, in float32 or float64.
        after: The gradient afterwards.
        weight: The weights before the update.
    """
    if not before.shape == after.shape == weight.shape or before.size < MIN_EXPLAINED_SIZE:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        squares, product, weight_squares = sum_squares(before), sum_products(before, weight), sum_squares(weight)
        of_gradient, of_weight, total = sum_products(before, after), sum_products(weight, after), sum_squares(after)
        if not (weight_squares and np.isfinite(squares + weight_squares + of_gradient + of_weight)):
            return None
        # The error of one element, from which follow those of the two numbers
        error = get_rounding(after) * float(np.sqrt(total / before.size))
        decay, decay_error = (of_weight - product) / weight_squares, error / float(np.sqrt(weight_squares))
        if is_explained(before, after, weight, (1.0, decay), (0.0, decay_error)):
            return 1.0, decay if abs(decay) > decay_error else 0.0
        determinant = squares * weight_squares - product**2
        if determinant <= SMALLEST_ANGLE * squares * weight_squares:
            return None
        factor = (of_gradient * weight_squares - of_weight * product) / determinant
        decay = (of_weight * squares - of_gradient * product) / determinant
        errors = error * float(np.sqrt(weight_squares / determinant)), error * float(np.sqrt(squares / determinant))
        if not (factor > 0 and is_explained(before, after, weight, (factor, decay), errors)):
            return None
        return factor, decay if abs(decay) > errors[1] else 0.0


def get_rounding(array: np.ndarray) -> float:
    """Return the largest relative error of an element of an array that was computed in a few operations."""
    is_float64 = array.dtype == np.float64
    roundings = FLOAT64_ROUNDINGS if is_float64 else FLOAT32_ROUNDINGS
    return roundings * float(np.finfo(np.float64 if is_float64 else np.float32).eps)


def is_explained(
    before: np.ndarray,
    after: np.ndarray,
    weight: np.ndarray,
    numbers: tuple[float, float],
    errors: tuple[float, float],
) -> bool:
    """Check whether `after = factor * before + decay * weight`, up to roundings of the terms.

    Args:
        before: The gradient before it was changed.
        after: The gradient afterwards.
        weight: The weights before the update.
        numbers: The factor and the decay.
        errors: The errors of both.
    """
    rounding, smallest = get_rounding(after), float(np.finfo(np.float32).tiny)
    shares = [rounding * abs(number) + error for number, error in zip(numbers, errors)]  # noqa: B905
    for block, expected, weights in iterate_blocks(before, after, weight):
        block, weights = block.astype(np.float64), weights.astype(np.float64)
        gap = np.abs(numbers[0] * block + numbers[1] * weights - expected)
        if not (gap <= shares[0] * np.abs(block) + shares[1] * np.abs(weights) + smallest).all():
            return False
    return True


def restore_gradients(
    changed: Mapping[str, np.ndarray],
    factors: Mapping[str, float],
    decays: Mapping[str, float] | None = None,
    weights: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Return the gradients before they were multiplied by factors and the decays were added, up to a rounding.

    Args:
        changed: The gradients afterwards, by name.
        factors: The factors; 1 for a gradient that has only a decay.
        decays: The multiples of the weights that were added afterwards; 0 for a gradient that has only a factor.
        weights: The weights before the update. Without them, a gradient with a decay cannot be restored.
    """
    decays, weights, restored = decays or {}, weights or {}, {}
    for name in dict.fromkeys([*factors, *decays]):
        decay, weight = decays.get(name, 0.0), weights.get(name)
        if name not in changed or (decay and (weight is None or weight.shape != changed[name].shape)):
            continue
        with np.errstate(over="ignore"):
            gradient = changed[name].astype(np.float64)
            if decay and weight is not None:
                gradient -= decay * weight.astype(np.float64)
            restored[name] = (gradient / factors.get(name, 1.0)).astype(changed[name].dtype)
    return restored
