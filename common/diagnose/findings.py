"""The ladder: what is compared at each stage, by how much it differs, and what explains it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from common.diagnose.histogram import Values, values_of
from common.diagnose.rounding import tolerance
from common.map.differences import relative

ALL = 1.0  # of a tensor's norm
SHOWN = 3  # tensors that a note names
EQUAL, DIFFERS, INHERITED, NOT_COMPARED = "equal", "differs", "inherited", "not compared"


@dataclass(frozen=True)
class Check:
    """One tensor. difference and noise: relative to its norm. culprit: whether the difference began here.

    values: of both sides, where they are arrays that differ. precision: in which they are compared.
    """

    tensor: str
    difference: float
    noise: float = 0.0
    culprit: bool = True
    values: Values | None = field(default=None, repr=False)
    precision: str = "float64"

    @property
    def tolerance(self) -> float:
        """The largest difference that rounding explains."""
        return tolerance(self.noise, self.precision)

    @property
    def differs(self) -> bool:
        return self.difference > self.tolerance


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
    """One stage. note: what is not compared, and why. precision: of its arrays, where `compare` is not told another."""

    name: str
    checks: list[Check] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)
    note: str = ""
    precision: str = "float64"

    @property
    def verdict(self) -> str:
        if any(each.differs and each.culprit for each in self.checks) or self.causes:
            return DIFFERS
        if any(each.differs for each in self.checks):
            return INHERITED
        return EQUAL if self.checks else NOT_COMPARED

    @property
    def lost(self) -> str:
        """What rounding leaves nothing to compare of; empty where there is no such tensor."""
        names = [each.tensor for each in self.checks if each.tolerance >= ALL]
        more = f" and {len(names) - SHOWN} others" if len(names) > SHOWN else ""
        words = f"not compared in {self.precision}, in which they are little but rounding: "
        return words + ", ".join(names[:SHOWN]) + more if names else ""

    @property
    def worst(self) -> Check | None:
        """Of those where a difference began; else of all."""
        began = [each for each in self.checks if each.differs and each.culprit]
        return max(began or self.checks, key=lambda each: each.difference, default=None)

    def compare(
        self,
        tensor: str,
        a: np.ndarray,
        b: np.ndarray,
        noise: float = 0.0,
        culprit: bool = True,
        least: float = 0.0,
        precision: str | None = None,
    ) -> Check:
        """Add the check of two arrays of one shape. Elements that are NaN in both are equal. least: see `relative`."""
        numbers = ~(np.isnan(a) & np.isnan(b))
        difference = relative(a, b, least) if numbers.all() else relative(a[numbers], b[numbers], least)
        found = Check(tensor, difference, noise, culprit, precision=precision or self.precision)
        if found.differs:
            found = replace(found, values=values_of(a, b))
        self.checks.append(found)
        return found

    def blame(self, cause: str, side: str, tensor: str, sentence: str, confirmed: bool = True) -> None:
        """Add a cause."""
        self.causes.append(Cause(cause, side, self.name, tensor, sentence, confirmed))


@dataclass(frozen=True)
class Diagnosis:
    """The stages in order. titles: of the two sides. unpaired: what has no counterpart. precision: of the trainings."""

    titles: dict[str, str]
    stages: Sequence[Stage]
    unpaired: Sequence[str] = ()
    precision: str = "float64"

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
