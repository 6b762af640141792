"""Settings and formulas of the one-cycle schedule, as in PyTorch's OneCycleLR."""

from dataclasses import dataclass
from itertools import pairwise

from typing_extensions import override

from common.config.keys import CURVE, key
from common.config.schedule_settings import ScheduleSettings, compute_half_cosine
from common.errors import UserError


@dataclass(frozen=True)
class OneCycleSettings(ScheduleSettings):
    """Rise from 1 / `div_factor` to 1 in the share `pct_start` of the steps, then fall.

    The last factor is 1 / (`div_factor` * `final_div_factor`). With `three_phase`, the rate first falls back to its
    first value, as slowly as it rose, and then further. With `cycle_momentum`, the momentum falls from `max_momentum`
    to `base_momentum` while the rate rises, and rises again while the rate falls back.
    """

    pct_start: float = key(CURVE, at_least=0, at_most=1)
    anneal: str = key(CURVE, choices=("cosine", "linear"))
    div_factor: float = key(CURVE, above=0)
    final_div_factor: float = key(CURVE, above=0)
    three_phase: bool = key(CURVE)
    cycle_momentum: bool = key(CURVE)
    base_momentum: float = key(CURVE, above=0, below=1)
    max_momentum: float = key(CURVE, above=0, below=1)

    @property
    @override
    def sets_momentum(self) -> bool:  # type: ignore[override]
        return self.cycle_momentum

    @override
    def compute_factor(self, step: int, total: int) -> float:
        first = 1 / self.div_factor
        return self._interpolate(step, total, first, 1.0, first / self.final_div_factor)

    @override
    def compute_momentum(self, step: int, total: int) -> float:
        return self._interpolate(step, total, self.max_momentum, self.base_momentum, self.max_momentum)

    def _interpolate(self, step: int, total: int, first: float, peak: float, final: float) -> float:
        """Return the value at a step: `first` at the start, `peak` at the highest rate, and `final` at the end."""
        # Points (step, value) between which the value is interpolated. As in PyTorch, the first phase ends one step and
        # the second one two steps before their share of the total.
        second_phase = [(2 * self.pct_start * total - 2, first)] if self.three_phase else []
        points = [(0.0, first), (self.pct_start * total - 1, peak), *second_phase, (total - 1.0, final)]
        for (start, start_value), (end, end_value) in pairwise(points):
            if step <= end and start < end:
                progress = (step - start) / (end - start)
                if self.anneal == "linear":
                    return start_value + (end_value - start_value) * progress
                return end_value + (start_value - end_value) * compute_half_cosine(progress)
        return final

    @override
    def check(self) -> None:
        if self.three_phase and self.pct_start > 0.5:
            raise UserError(f"schedule.pct_start={self.pct_start:g}: with three_phase it must be at most 0.5; lower it")
