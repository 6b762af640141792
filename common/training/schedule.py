"""The learning rate and the momentum of each update. `common.config.schedules` has the formulas."""

import math

from common.config.import_object import import_function
from common.config.optimizer_settings import OptimizerSettings
from common.config.schedules import CustomScheduleSettings
from common.config.schema import Config
from common.errors import UserError, describe_error


def compute_learning_rate(config: Config, step: int) -> float:
    """Return the learning rate of update `step` (from 1).

    The rate is `optimizer.learning_rate` times the factor of the schedule. In the first `warmup_steps` updates it rises
    in a straight line to the first rate of the schedule: update s has s / warmup_steps of that rate, or with
    `warmup_start` f, f + (1 - f) (s - 1) / warmup_steps. The schedule counts the updates after the warm-up from 0. With
    `every` N, updates 1 to N have the same rate, then N + 1 to 2 N, and so on. Each group has the rate of its first
    update, or in a warm-up without `warmup_start` that of its last update. With `schedule=plateau`, the caller
    multiplies the result by the factor of the plateaus so far.
    """
    schedule, base = config.schedule, config.optimizer.learning_rate
    after_warmup, total = _locate_step(config, step)
    if after_warmup < 0:
        assert schedule.warmup_steps is not None
        warmup, first = schedule.warmup_steps, base * schedule.compute_factor(0, total)
        position = after_warmup + warmup  # the updates before this one, in whole parts of `every` updates
        if schedule.warmup_start is None:
            return first * (position + schedule.every) / warmup
        return first * (schedule.warmup_start + (1 - schedule.warmup_start) * position / warmup)
    return base * schedule.compute_factor(after_warmup, total)


def find_update_settings(config: Config, step: int) -> OptimizerSettings:
    """Return the optimizer's settings of update `step` (from 1), with the momentum that the schedule gives it.

    In the warm-up, the momentum is the first one of the schedule.
    """
    if not config.schedule.sets_momentum:
        return config.optimizer
    after_warmup, total = _locate_step(config, step)
    return config.optimizer.with_momentum(config.schedule.compute_momentum(max(0, after_warmup), total))


def _locate_step(config: Config, step: int) -> tuple[int, int]:
    """Return the number of updates between the warm-up and update `step`, and the number of all after the warm-up.

    The first number is negative if the update is within the warm-up. It counts whole parts of `every` updates.
    """
    warmup, total = config.schedule.warmup_steps, config.schedule.total_steps or config.train.steps
    assert warmup is not None, "resolve the config first"
    position = (step - 1) // config.schedule.every * config.schedule.every
    return position - warmup, max(1, total - warmup)


def find_highest_rate(config: Config) -> float:
    """Return the highest learning rate of a run. Raise UserError if a rate is not a finite number of at least 0.

    config: a config whose steps are resolved.
    """
    if isinstance(config.schedule, CustomScheduleSettings):
        assert config.schedule.function is not None
        import_function("schedule.function", config.schedule.function)
    return max(_compute_valid_rate(config, step) for step in range(1, config.train.steps + 1))


def _compute_valid_rate(config: Config, step: int) -> float:
    schedule = config.schedule
    name = f"schedule={schedule.kind}"
    if isinstance(schedule, CustomScheduleSettings):
        name = f"schedule.function={schedule.function}"
    try:
        rate = compute_learning_rate(config, step)
    except OverflowError:
        rate = math.inf
    except Exception as error:
        if not isinstance(schedule, CustomScheduleSettings):
            raise
        raise UserError(f"{name}: raised {describe_error(error)} at step {step}") from error
    if not 0 <= rate < math.inf:
        raise UserError(f"{name}: the learning rate of step {step} is {rate}; it must be finite and at least 0")
    return rate
