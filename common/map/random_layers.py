"""Layers that return other values when a training pass is computed again on the same variables."""

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from common.map.array_differences import relative_difference
from common.map.changing_buffers import find_buffers
from common.map.description import ObservedPass, RecordedCall

TOLERANCE = 1e-9  # larger than the rounding errors of a float64 pass whose sums are in another order
# The largest number of passes with different seeds after which a model counts as one without random layers. Several are
# needed, because stochastic depth, for example, drops few of the examples.
TRIES = 32


@dataclass(frozen=True)
class TrainingObservation:
    """Observations from several training passes on the same variables.

    Attributes:
        random_layers: The layers that draw random numbers, as "path (function)".
        stateful: A sentence for each layer that keeps a state outside of variables.
        buffers: The buffers that passes change, by name, and whether their new values depend on the examples.
        changed: The names of all variables that passes change.
    """

    random_layers: list[str]
    stateful: list[str]
    buffers: dict[str, bool]
    changed: frozenset[str]


def observe_training(
    compute: Callable[[int, slice], ObservedPass], examples: int, statistics: Collection[str]
) -> TrainingObservation:
    """Compute training passes with equal and with different seeds, and compare what the layers return.

    Args:
        compute: A function that computes a pass from a seed of all random generators and some of the examples, and then
            restores the variables.
        examples: The number of examples.
        statistics: The names of BatchNorm's moving statistics.
    """
    all_examples = slice(None)
    first, second = compute(0, all_examples), compute(0, all_examples)
    random_layers = list(first.dropout_functions)
    buffers, changed = find_buffers(compute, (first, second), examples, statistics), frozenset(first.changed)
    if (path := _find_difference(first, second)) is not None:
        sentence = (
            f"layer {path} returns something else when the same batch is computed again with the same seed: it keeps "
            "a state, such as a counter, a hidden state or a random generator of its own, which checkpoints do not "
            "have; compute it from the inputs"
        )
        return TrainingObservation(random_layers, [sentence], buffers, changed)
    for seed in range(1, TRIES + 1 if first.has_drawn else 1):
        if (path := _find_difference(first, compute(seed, all_examples))) is not None:
            return TrainingObservation([*random_layers, f"{path} (random numbers)"], [], buffers, changed)
    return TrainingObservation(random_layers, [], buffers, changed)


def seed_python(seed: int) -> None:
    """Seed the global random generators of Python and of NumPy."""
    random.seed(seed)
    np.random.seed(seed)


def read_python_generators() -> tuple[object, ...]:
    """Return the states of the global random generators of Python and of NumPy, which can be compared."""
    numpy_state = np.random.get_state(legacy=True)
    return random.getstate(), *(x.tobytes() if isinstance(x, np.ndarray) else x for x in numpy_state)


def _find_difference(first: ObservedPass, second: ObservedPass) -> str | None:
    """Return the first layer that returns other values for the same input. Layers that contain it come later."""
    for path, call in first.calls.items():
        other = second.calls.get(path, RecordedCall(None, None))
        if not _is_equal(call.returned, other.returned) and _is_equal(call.received, other.received):
            return path
    return None


def _is_equal(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and relative_difference(a, b, equal_nan=True) <= TOLERANCE
