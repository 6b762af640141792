"""A random choice among other transforms."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from common.data.transforms.transform import (
    ONE_LABEL,
    Example,
    IgnoredLabels,
    Transform,
    is_number,
    require,
)


@dataclass(frozen=True)
class RandomChoice:
    """Apply one of some transforms, chosen for each example. If they mix examples, see `MixingChoice`.

    `probabilities` has a number for each transform; null gives all the same. If their sum is less than 1, the example
    stays as it is with the probability that remains.
    """

    training_only: ClassVar[bool] = True

    transforms: Sequence[Any]
    probabilities: Sequence[float] | None = None
    ignored_labels: IgnoredLabels = field(default_factory=lambda: ONE_LABEL)
    members: Sequence[Transform] = ()  # the transforms that `transforms` names; the builder fills it in

    def __post_init__(self) -> None:
        is_list = isinstance(self.transforms, list) and len(self.transforms) > 0
        require(is_list, "random_choice: transforms", self.transforms, "a list of transforms")
        numbers = self.probabilities
        if numbers is not None:
            is_fitting = isinstance(numbers, list | tuple) and len(numbers) == len(self.transforms)
            require(
                is_fitting and all(is_number(x) for x in numbers) and 0 < sum(numbers) <= 1 + 1e-9,
                *("random_choice: probabilities", numbers, "a number for each transform, with a sum of at most 1"),
            )

    def bind(self, example: Example) -> Self:
        """Return the choice among transforms that are bound to the example."""
        labels = self.ignored_labels
        members = [
            replace(member, ignored_labels=labels) if hasattr(member, "ignored_labels") else member  # type: ignore[type-var]
            for member in self.members
        ]
        return replace(self, members=[member.bind(example) for member in members])

    def __call__(self, example: Example, generator: np.random.Generator) -> Example:
        """Return the example after the transform that the generator chooses."""
        index = choose(len(self.members), self.probabilities, generator)
        return {**example} if index is None else self.members[index](example, generator)


def choose(count: int, probabilities: Sequence[float] | None, generator: np.random.Generator) -> int | None:
    """Return a random number below `count`, or None with the probability that remains."""
    bounds = np.cumsum(probabilities or [1 / count] * count)
    index = int(np.searchsorted(bounds, generator.random(), side="right"))
    # All probabilities together may miss 1 by rounding.
    index = count - 1 if index == count and bounds[-1] > 1 - 1e-9 else index
    return None if index == count else index
