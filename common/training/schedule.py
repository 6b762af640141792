"""Learning-rate schedules: pure functions of the step that both sides use instead of a framework's scheduler."""

import math

from common.config.schema import Config


def compute_learning_rate(config: Config, step: int) -> float:
    """Return the learning rate of update `step` (from 1).

    The rate is `optimizer.learning_rate` times a factor. In the first `warmup_steps` updates the factor of update s is
    s / warmup_steps. After them it is 1 for `constant`, 1 - p for `linear` and (1 + cos(pi p)) / 2 for `cosine`, where
    p = (s - 1 - warmup_steps) / (total_steps - warmup_steps) rises from 0 to 1. These are Hugging Face's
    get_linear_schedule_with_warmup and get_cosine_schedule_with_warmup, but without a first step of rate 0.
    """
    schedule = config.schedule
    base, warmup = config.optimizer.learning_rate, schedule.warmup_steps
    assert warmup is not None, "resolve the config first"
    total = schedule.total_steps or config.train.steps
    if step <= warmup:
        return base * step / warmup
    if schedule.kind == "constant":
        return base
    progress = min(1.0, (step - 1 - warmup) / max(1, total - warmup))
    if schedule.kind == "linear":
        return base * (1 - progress)
    return base * (1 + math.cos(math.pi * progress)) / 2
