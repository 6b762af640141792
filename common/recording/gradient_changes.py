"""Find what a script does to its gradients before the optimizer receives them: clip, scale, mask or decay them.

These functions run in the environment of the script that is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from common.recording.clip_factors import MIN_EXPLAINED_SIZE, find_decay, find_factor, is_explained

# Errors of a gradient that is a sum over tokens, in roundings of its largest element, if the script clips the terms
NOISE_ROUNDINGS = 16
SAME_NUMBER = 1e-4  # largest relative difference of a number that two gradients show
UNCHANGED = 1e-6  # largest distance from 1 of a factor that only rounding causes


@dataclass
class GradientChanges:
    """Numbers with `received = factor * gradient + decay * weight`, by the name of the variable.

    Attributes:
        factors: The factors other than 1.
        decays: The decays other than 0.
        others: The gradients before the change, if no such numbers explain it.
    """

    factors: dict[str, float] = field(default_factory=dict)
    decays: dict[str, float] = field(default_factory=dict)
    others: dict[str, np.ndarray] = field(default_factory=dict)

    def divide(self, count: int, names: Iterable[str]) -> bool:
        """Divide the gradients before the change by their number if the script does so, too.

        Return whether that is known: the script may clip all gradients that the largest factor does not show.

        Args:
            count: The number of gradients whose sum was compared with the received ones.
            names: The names of all variables.
        """
        largest = max((self.factors.get(name, 1.0) for name in names), default=1.0)
        if abs(largest * count - 1) > SAME_NUMBER:
            return abs(largest - 1) <= SAME_NUMBER
        factors = {name: factor * count for name, factor in self.factors.items()}
        self.factors = {name: factor for name, factor in factors.items() if abs(factor - 1) > SAME_NUMBER}
        return True


def find_changes(
    before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray], read_weight: Callable[[str], np.ndarray]
) -> GradientChanges:
    """Compare gradients before a script changed them with those that the optimizer received.

    Args:
        before: The gradients before the changes.
        after: The gradients that the optimizer received.
        read_weight: Returns the weights of a variable before the update.
    """
    changes = GradientChanges()
    for name in sorted(after, key=lambda name: -after[name].size):
        received = after[name]
        array = before[name] if name in before else np.zeros_like(received)  # the loss may not depend on a variable
        if array is received or not (array.any() or received.any()):
            continue
        change = _find_change(changes, array, received, lambda name=name: read_weight(name))  # type: ignore[misc]
        if change is None:
            changes.others.update({name: array} if name in before else {})
            continue
        factor, decay = change
        if abs(factor - 1) > UNCHANGED:
            changes.factors[name] = factor
        if decay:
            changes.decays[name] = decay
    return changes


def _find_change(
    changes: GradientChanges, before: np.ndarray, after: np.ndarray, read_weight: Callable[[], np.ndarray]
) -> tuple[float, float] | None:
    """Return the factor and the decay of a gradient; None if they do not explain how it was changed.

    Any change of a single number is a factor: the numbers of larger gradients are tried first.
    """
    if before.shape == after.shape and before.size < MIN_EXPLAINED_SIZE and not np.array_equal(before, after):
        weight = read_weight()
        for name, decay in changes.decays.items() if weight.any() else ():
            factor = changes.factors.get(name, 1.0)
            errors = SAME_NUMBER * factor, SAME_NUMBER * abs(decay)
            if is_explained(before, after, weight, (factor, decay), errors):
                return factor, decay
    factor_alone = find_factor(before, after)
    numbers = (factor_alone, 0.0) if factor_alone is not None else find_decay(before, after, read_weight())
    if numbers is None:
        noisy_factor = find_factor(before, after, NOISE_ROUNDINGS) or 1.0
        numbers = (noisy_factor, 0.0) if abs(noisy_factor - 1) > SAME_NUMBER else None
    return numbers
