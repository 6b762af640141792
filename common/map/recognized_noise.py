"""Recognition of the noise of a layer that neither framework defines, such as DropPath of timm.

Classes of one name compute different things: some scale, some drop whole batches, some act in evaluation too. So a
layer is recognized by its outputs for random inputs, not by its name.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Literal

import numpy as np

from common.map.noise import Noise

# A function that computes a layer: (inputs, training, seed of the random numbers) -> (outputs, gradients of the sum of
# the outputs with respect to the inputs).
LayerFunction = Callable[[np.ndarray, bool, int], tuple[np.ndarray, np.ndarray]]
EXAMPLES = 4096
EXAMPLE_SHAPES = ((4, 2, 4), (4, 8), (32,))  # a layer may demand a number of axes
TOLERANCE = 1e-6  # a layer may draw in float32
DEVIATIONS = 5  # the number of standard deviations by which a statistic may differ from its expectation
TRIES = 64  # the number of passes that show whether a layer draws random numbers


def recognize_noise(compute: LayerFunction, numbers: Collection[float]) -> Noise | None:
    """Return the noise of a layer; None without noise that can be aligned.

    Args:
        compute: The layer, which may raise an error for inputs that it does not accept.
        numbers: The numbers among the layer's attributes. Some strengths can only be measured roughly; the closest of
            these numbers is the exact value.
    """
    for shape in EXAMPLE_SHAPES:
        try:
            return _recognize(compute, sorted(numbers), shape)
        except Exception:  # the user's code may raise any error, because it need not accept such inputs
            continue
    return None


def has_noise(compute: LayerFunction) -> bool:
    """Check whether a layer that returns its input in evaluation changes it in training in a way that varies."""
    for shape in EXAMPLE_SHAPES:
        x = np.random.default_rng(0).standard_normal((2, *shape))
        try:
            if not _is_close(compute(x, False, 0)[0], x):
                return False
            first = compute(x, True, 0)[0]
            return any(not _is_close(compute(x, True, seed)[0], first) for seed in range(1, TRIES))
        except Exception:  # the user's code may raise any error, because it need not accept such inputs
            continue
    return False


def explain_input(received: np.ndarray | None, examples: int, axes: Sequence[int] = ()) -> str | None:
    """Explain why a layer cannot draw for the examples in its input; return None if it can.

    Args:
        received: The first input of the layer.
        examples: The number of examples.
        axes: The numbers of axes that the layer's class accepts, including the examples; empty if it accepts any.
    """
    if received is None or received.ndim < 2 or (axes and received.ndim not in axes):
        return f"receives {'no tensor' if received is None else f'{received.ndim} axes'}"
    return None if len(received) in (1, examples) else f"receives {len(received)} rows for {examples} examples"


def _recognize(compute: LayerFunction, numbers: Sequence[float], shape: tuple[int, ...]) -> Noise | None:
    x, y = np.random.default_rng(0).standard_normal((2, EXAMPLES, *shape))
    if not _is_close(compute(x[:2], False, 0)[0], x[:2]):
        return None
    trained, factors = compute(x, True, 0)
    repeated, repeated_factors = compute(y, True, 0)
    if _is_close(trained, compute(x, True, 1)[0]):
        return None  # no random numbers
    if _is_close(factors, np.ones_like(x)):
        terms = trained - x
        return _recognize_normal("add", terms, 0, numbers) if _is_close(repeated - y, terms) else None
    if not _is_close(trained, x * factors):
        return None
    if np.unique(np.abs(factors) > TOLERANCE).size == 2:
        return _recognize_drop(factors, numbers)
    strengths = [*numbers, *(number**0.5 for number in numbers if number > 0)]
    strengths += [(number / (1 - number)) ** 0.5 for number in numbers if 0 < number < 1]
    return _recognize_normal("multiply", factors, 1, strengths) if _is_close(repeated_factors, factors) else None


def _recognize_drop(factors: np.ndarray, numbers: Sequence[float]) -> Noise | None:
    """Return the noise of a layer that multiplies its input by factors, some of which are 0."""
    flat = factors.reshape(EXAMPLES, -1)
    is_of_examples = _is_close(flat, flat[:, :1] + np.zeros_like(flat))
    draws = flat[:, 0] if is_of_examples else factors
    is_kept = np.abs(draws) > TOLERANCE
    factor = float(draws[is_kept][0])
    if factor < 1 - TOLERANCE or not _is_close(draws, np.where(is_kept, factor, 0)):
        return None
    dropped = 1 - is_kept.mean()
    error = DEVIATIONS * (dropped * (1 - dropped) / is_kept.size) ** 0.5
    candidates = {round(rate, 12) for number in numbers for rate in (number, 1 - number) if 0 < rate < 1}
    is_scaled = factor > 1 + TOLERANCE
    if is_scaled:
        rate = 1 - 1 / factor
        candidates = {x for x in candidates if abs(x - rate) < TOLERANCE} or {round(rate, 12)}
    candidates = {rate for rate in candidates if abs(rate - dropped) < error}
    if len(candidates) != 1 or not _is_independent(is_kept - is_kept.mean()):
        return None
    return Noise("drop", "example" if is_of_examples else "element", candidates.pop(), is_scaled)


def _recognize_normal(
    operation: Literal["multiply", "add"], draws: np.ndarray, mean: float, strengths: Sequence[float]
) -> Noise | None:
    """Return the noise whose normal numbers are `draws`, one for each element."""
    size, deviation = draws.size, float(draws.std())
    if abs(draws.mean() - mean) > DEVIATIONS * deviation / size**0.5:
        return None
    standard = (draws - draws.mean()) / deviation
    skewness, excess_kurtosis = (standard**3).mean(), (standard**4).mean() - 3
    is_normal = (
        abs(skewness) < DEVIATIONS * (6 / size) ** 0.5 and abs(excess_kurtosis) < DEVIATIONS * (24 / size) ** 0.5
    )
    near = [x for x in strengths if abs(x - deviation) < DEVIATIONS * deviation / (2 * size) ** 0.5]
    if not is_normal or not near or np.ptp(near) > TOLERANCE * near[0] or not _is_independent(standard):
        return None
    return Noise(operation, "element", near[0])


def _is_independent(draws: np.ndarray) -> bool:
    """Check whether neighbours on every axis are uncorrelated. The draws have a mean of 0."""
    variance = (draws**2).mean()
    return all(
        abs((np.delete(draws, 0, axis) * np.delete(draws, -1, axis)).mean())
        < DEVIATIONS * variance / (draws.size * (1 - 1 / draws.shape[axis])) ** 0.5
        for axis in range(draws.ndim)
    )


def _is_close(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE))
