"""Settings and formulas of the kinds of learning rate schedules.

A schedule is a pure function of the step, which both sides use instead of a framework's scheduler. Each field is a key
of the config, such as schedule.gamma. The files in conf/schedule have the default values and explain the keys. A new
kind needs a class here and a YAML file in conf/schedule.
"""

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise

from typing_extensions import override

from common.config.import_object import import_object
from common.config.keys import CURVE, key
from common.config.one_cycle import OneCycleSettings
from common.config.schedule_settings import ScheduleSettings, compute_half_cosine
from common.errors import UserError


@dataclass(frozen=True)
class ConstantSettings(ScheduleSettings):
    """Stay at `optimizer.learning_rate`."""

    uses_total_steps = False

    @override
    def compute_factor(self, step: int, total: int) -> float:
        return 1.0


@dataclass(frozen=True)
class LinearSettings(ScheduleSettings):
    """Fall to 0 in a straight line."""

    @override
    def compute_factor(self, step: int, total: int) -> float:
        return 1 - min(1.0, step / total)


@dataclass(frozen=True)
class CosineSettings(ScheduleSettings):
    """Fall along half a cosine, `cycles` times over the whole schedule."""

    end_factor: float = key(CURVE, at_least=0)
    cycles: int = key(CURVE, at_least=1)

    @override
    def compute_factor(self, step: int, total: int) -> float:
        progress = min(1.0, step / total)
        progress = self.cycles * progress % 1.0 if progress < 1 else 1.0
        return self.end_factor + (1 - self.end_factor) * compute_half_cosine(progress)


@dataclass(frozen=True)
class CosineRestartsSettings(ScheduleSettings):
    """Fall along half a cosine again and again. Each cycle is `cycle_multiplier` times as long as the one before."""

    uses_total_steps = False

    first_cycle_steps: int = key(CURVE, at_least=1, unit="steps")
    cycle_multiplier: float = key(CURVE, at_least=1)
    peak_multiplier: float = key(CURVE, at_least=0)
    end_factor: float = key(CURVE, at_least=0)

    @override
    def compute_factor(self, step: int, total: int) -> float:
        length, start, cycle = float(self.first_cycle_steps), 0.0, 0
        if self.cycle_multiplier == 1:
            cycle = step // self.first_cycle_steps
            start = float(cycle * self.first_cycle_steps)  # without the loop, which would take a turn for each cycle
        while step >= start + length:
            start, length, cycle = start + length, length * self.cycle_multiplier, cycle + 1
        height = self.peak_multiplier**cycle * compute_half_cosine((step - start) / length)
        return self.end_factor + (1 - self.end_factor) * height


@dataclass(frozen=True)
class PolynomialSettings(ScheduleSettings):
    """Fall to `end_factor` along a power of the remaining part of the schedule."""

    power: float = key(CURVE, above=0)
    end_factor: float = key(CURVE, at_least=0)

    @override
    def compute_factor(self, step: int, total: int) -> float:
        return self.end_factor + (1 - self.end_factor) * (1 - min(1.0, step / total)) ** self.power


@dataclass(frozen=True)
class StepSettings(ScheduleSettings):
    """Multiply the rate by `gamma` after every `step_size` updates."""

    uses_total_steps = False

    step_size: int = key(CURVE, at_least=1, unit="steps")
    gamma: float = key(CURVE, at_least=0)

    @override
    def compute_factor(self, step: int, total: int) -> float:
        return self.gamma ** (step // self.step_size)


@dataclass(frozen=True)
class MultiStepSettings(ScheduleSettings):
    """Multiply the rate by `gamma` after each number of updates in `milestones`."""

    uses_total_steps = False

    milestones: list[int] = key(CURVE, unit="steps")
    gamma: float = key(CURVE, at_least=0)

    @override
    def compute_factor(self, step: int, total: int) -> float:
        return self.gamma ** bisect_right(self.milestones, step)

    @override
    def check(self) -> None:
        _check_increasing("milestones", self.milestones)


@dataclass(frozen=True)
class ExponentialSettings(ScheduleSettings):
    """Multiply the rate by `gamma` over `decay_steps` updates: by the same root of `gamma` at each update."""

    uses_total_steps = False

    gamma: float = key(CURVE, at_least=0)
    decay_steps: int = key(CURVE, at_least=1, unit="steps")

    @override
    def compute_factor(self, step: int, total: int) -> float:
        return self.gamma ** (step / self.decay_steps)


@dataclass(frozen=True)
class PiecewiseSettings(ScheduleSettings):
    """Use one of `factors` up to each boundary, and the last factor after the last boundary.

    As in Keras, update number b, counted from 0, still has the factor before the boundary b.
    """

    uses_total_steps = False

    boundaries: list[int] = key(CURVE, unit="steps")
    factors: list[float] = key(CURVE)

    @override
    def compute_factor(self, step: int, total: int) -> float:
        return self.factors[bisect_left(self.boundaries, step)]

    @override
    def check(self) -> None:
        _check_increasing("boundaries", self.boundaries)
        if len(self.factors) != len(self.boundaries) + 1:
            raise UserError(
                f"schedule.factors={self.factors}: must have one factor more than the {len(self.boundaries)} boundaries"
            )
        if not all(0 <= factor < math.inf for factor in self.factors):
            raise UserError(f"schedule.factors={self.factors}: must be finite and at least 0")


@dataclass(frozen=True)
class InverseSqrtSettings(ScheduleSettings):
    """Fall with the inverse square root of the step. `timescale: null` means `warmup_steps`, or 10,000 without any."""

    uses_total_steps = False

    timescale: int | None = key(CURVE, at_least=1, unit="steps")

    @override
    def compute_factor(self, step: int, total: int) -> float:
        timescale = self.timescale or self.warmup_steps or 10_000  # transformers uses the same defaults
        return 1 / math.sqrt((step + timescale) / timescale)


@dataclass(frozen=True)
class PlateauSettings(ScheduleSettings):
    """Multiply the rate by `factor` if more than `patience` evaluations in a row do not improve `metric`.

    An evaluation improves the metric if it beats the best value so far by `threshold`, which is a share of that value
    or a difference. `cooldown` evaluations after each reduction do not count. `common.training.plateau` has the rule.
    """

    uses_total_steps = False

    factor: float = key(CURVE, at_least=0, below=1)
    patience: int = key(CURVE, at_least=0, unit="evaluations")
    threshold: float = key(CURVE, at_least=0)
    threshold_mode: str = key(CURVE, choices=("relative", "absolute"))
    cooldown: int = key(CURVE, at_least=0, unit="evaluations")
    min_factor: float = key(CURVE, at_least=0, at_most=1)
    metric: str = key(CURVE)

    @override
    def compute_factor(self, step: int, total: int) -> float:
        return 1.0  # the training loop multiplies the rate by the factor of the plateaus so far


@dataclass(frozen=True)
class CustomScheduleSettings(ScheduleSettings):
    """Call a function of the user, named as module:function, with `step` and `total`. It returns the factor."""

    function: str | None = key(CURVE, names_code=True)

    @override
    def compute_factor(self, step: int, total: int) -> float:
        assert self.function is not None
        return float(import_object(self.function)(step, total))

    @override
    def check(self) -> None:
        if self.function is None:
            raise UserError("schedule.function: has no value; schedule=custom needs schedule.function=module:function")


def _check_increasing(name: str, steps: list[int]) -> None:
    if not steps or steps[0] < 0 or any(first >= second for first, second in pairwise(steps)):
        raise UserError(f"schedule.{name}={steps}: must be numbers of steps, at least 0 and increasing")


SCHEDULES: dict[str, type[ScheduleSettings]] = {
    "constant": ConstantSettings,
    "linear": LinearSettings,
    "cosine": CosineSettings,
    "cosine_restarts": CosineRestartsSettings,
    "polynomial": PolynomialSettings,
    "step": StepSettings,
    "multi_step": MultiStepSettings,
    "exponential": ExponentialSettings,
    "piecewise": PiecewiseSettings,
    "inverse_sqrt": InverseSqrtSettings,
    "one_cycle": OneCycleSettings,
    "plateau": PlateauSettings,
    "custom": CustomScheduleSettings,
}
