"""Random parameters and gradients of a small layer, for tests of updates."""

import numpy as np

Arrays = dict[str, np.ndarray]


def draw_parameters(seed: int, scale: float = 1.0) -> Arrays:
    """Draw the weight and the bias of a layer from a normal distribution."""
    stream = np.random.default_rng(seed)
    return {"weight": scale * stream.standard_normal((5, 7)), "bias": scale * stream.standard_normal(5)}


def multiply(arrays: Arrays, factor: float) -> Arrays:
    """Multiply all arrays by a factor."""
    return {name: array * factor for name, array in arrays.items()}


def add_prefix(prefix: str, arrays: Arrays) -> Arrays:
    """Name the arrays as slots of an optimizer, such as exp_avg.weight."""
    return {f"{prefix}.{name}": array for name, array in arrays.items()}


def round_to_float32(arrays: Arrays) -> Arrays:
    """Round to float32, and return float64."""
    return {name: array.astype(np.float32).astype(np.float64) for name, array in arrays.items()}
