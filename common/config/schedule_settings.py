"""Settings and methods of every kind of learning rate schedule."""

import math
from dataclasses import dataclass
from typing import ClassVar

from common.config.keys import CURVE, key


@dataclass(frozen=True)
class ScheduleSettings:
    """Settings that every kind of schedule has.

    `total_steps: null` means all steps of the run. `warmup_steps: null` means a sixth of the total steps, at most 50.
    `warmup_start` is the first rate of the warm-up as a part of the first rate after it; null means `every` /
    warmup_steps. The rate changes only every `every` steps, such as once per epoch; `warmup_steps` is a multiple of it.
    """

    uses_total_steps: ClassVar[bool] = True  # whether the factors depend on `total_steps`
    sets_momentum: ClassVar[bool] = False  # whether the schedule also sets the optimizer's momentum

    kind: str = key(CURVE)
    warmup_steps: int | None = key(CURVE, at_least=0)
    total_steps: int | None = key(CURVE, at_least=1)
    warmup_start: float | None = key(CURVE, at_least=0, at_most=1, null="for schedule.every / schedule.warmup_steps")
    every: int = key(CURVE, at_least=1, unit="steps")

    def compute_factor(self, step: int, total: int) -> float:
        """Return the factor of `optimizer.learning_rate` after the warm-up.

        Args:
            step: the number of updates between the warm-up and this update, from 0. PyTorch calls it `last_epoch`.
            total: the number of steps of the schedule after the warm-up, at least 1.
        """
        raise NotImplementedError

    def compute_momentum(self, step: int, total: int) -> float:
        """Return the momentum after the warm-up, if `sets_momentum`. The arguments are as for `compute_factor`."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise UserError if values do not fit together."""


def compute_half_cosine(progress: float) -> float:
    """Return a factor that falls from 1 to 0 along half a cosine while the progress rises from 0 to 1."""
    return (1 + math.cos(math.pi * progress)) / 2
