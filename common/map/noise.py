"""Kinds of noise that training aligns: a layer changes its input by random numbers, as dropout does."""

import math
from dataclasses import dataclass
from typing import Literal

Operation = Literal["drop", "alpha", "multiply", "add"]
Unit = Literal["element", "channel", "example"]
SAME_STRENGTH = 1e-6  # libraries compute the rates of stochastic depth in float32
# What AlphaDropout puts in place of a dropped element: the limit of SELU for large negative inputs.
ALPHA_VALUE = -1.0507009873554804934193349852946 * 1.6732632423543772848170429916717


@dataclass(frozen=True)
class Noise:
    """Random changes of the input of a layer in training.

    Attributes:
        operation: "drop" replaces a part of the input by 0. "alpha" replaces it by a negative number and then restores
            mean and variance, as AlphaDropout does. "multiply" multiplies by normal numbers of mean 1; "add" adds
            normal numbers of mean 0.
        unit: The unit of a random number: an element, a channel of an example, or an example.
        strength: The probability of dropping, or the standard deviation of the normal numbers.
        is_scaled: Whether "drop" divides what it does not drop by 1 - strength.
    """

    operation: Operation
    unit: Unit
    strength: float
    is_scaled: bool = True

    def __str__(self) -> str:
        if self.operation in ("multiply", "add"):
            return f"{'factors' if self.operation == 'multiply' else 'terms'} with deviation {self.strength:g}"
        parts = [f"{self.strength:g}"] + ([] if self.unit == "element" else [f"of {self.unit}s"])
        parts += ["as AlphaDropout"] if self.operation == "alpha" else []
        return " ".join(parts + ([] if self.is_scaled else ["without scaling"]))

    @property
    def is_normal(self) -> bool:
        """Return whether the random numbers are normally distributed."""
        return self.operation in ("multiply", "add")

    @property
    def factor(self) -> float:
        """The factor by which "drop" multiplies the remaining elements."""
        return 1 / (1 - self.strength) if self.is_scaled and self.strength < 1 else 1.0

    @property
    def alpha_terms(self) -> tuple[float, float]:
        """The factor and the term with which "alpha" restores the mean and the variance."""
        factor = ((1 - self.strength) * (1 + self.strength * ALPHA_VALUE**2)) ** -0.5
        return factor, -factor * ALPHA_VALUE * self.strength

    def is_like(self, other: "Noise") -> bool:
        """Check whether another noise is the same, except for rounding of its strength."""
        kinds = [(noise.operation, noise.unit, noise.is_scaled) for noise in (self, other)]
        return kinds[0] == kinds[1] and math.isclose(self.strength, other.strength, rel_tol=SAME_STRENGTH)
