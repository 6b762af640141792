"""The ladder: what is compared at each stage, by how much it differs, and what explains it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from common.diagnose.values import Values, values_of
from common.mapping.differences import relative

EQUAL, DIFFERS, INHERITED, NOT_COMPARED = "equal", "differs", "inherited", "not compared"
FLOOR = 1e-12  # float64: differences below it count as rounding, whatever noise was measured
MARGIN = 100.0  # times the measured noise


@dataclass(frozen=True)
class Check:
    """One tensor. difference and noise: relative to its norm. culprit: whether the difference began here.

    values: of both sides, where they are arrays that differ.
    """

    tensor: str
    difference: float
    noise: float = 0.0
    culprit: bool = True
    values: Values | None = field(default=None, repr=False)

    @property
    def differs(self) -> bool:
        return self.difference > tolerance(self.noise)


@dataclass(frozen=True)
class Cause:
    """What makes the sides differ. side: a, b, or "both" where neither is the right one.

    confirmed: whether a computation with the cause removed, or with it alone, gave exactly what was seen.
    """

    cause: str
    side: str
    stage: str
    tensor: str
    sentence: str
    confirmed: bool


@dataclass
class Stage:
    """One stage. note: why there is nothing to compare."""

    name: str
    checks: list[Check] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)
    note: str = ""

    @property
    def verdict(self) -> str:
        if any(each.differs and each.culprit for each in self.checks) or self.causes:
            return DIFFERS
        if any(each.differs for each in self.checks):
            return INHERITED
        return EQUAL if self.checks else NOT_COMPARED

    @property
    def worst(self) -> Check | None:
        """Of those where a difference began; else of all."""
        began = [each for each in self.checks if each.differs and each.culprit]
        return max(began or self.checks, key=lambda each: each.difference, default=None)

    def compare(
        self, tensor: str, a: np.ndarray, b: np.ndarray, noise: float = 0.0, culprit: bool = True, least: float = 0.0
    ) -> Check:
        """Add the check of two arrays of one shape. least: see `relative`."""
        found = Check(tensor, relative(a, b, least), noise, culprit)
        if found.differs:
            found = replace(found, values=values_of(a, b))
        self.checks.append(found)
        return found

    def blame(self, cause: str, side: str, tensor: str, sentence: str, confirmed: bool = True) -> None:
        """Add a cause."""
        self.causes.append(Cause(cause, side, self.name, tensor, sentence, confirmed))


@dataclass(frozen=True)
class Diagnosis:
    """The stages in order. titles: of the two sides. unpaired: what has no counterpart."""

    titles: dict[str, str]
    stages: Sequence[Stage]
    unpaired: Sequence[str] = ()

    @property
    def first(self) -> Stage | None:
        """The first stage in which a difference began."""
        return next((each for each in self.stages if each.verdict == DIFFERS), None)

    @property
    def causes(self) -> list[Cause]:
        """Of all stages, in order."""
        return [cause for stage in self.stages for cause in stage.causes]

    @property
    def equal(self) -> bool:
        return all(each.verdict in (EQUAL, NOT_COMPARED) for each in self.stages)


def tolerance(noise: float) -> float:
    """The largest difference that rounding explains."""
    return max(FLOOR, MARGIN * noise)
