"""Learning-rate schedules: pure functions of the step that both sides use instead of a framework's scheduler."""

import math

from common.config.schema import Config


def compute_learning_rate(config: Config, step: int) -> float:
    """Return the learning rate of update `step` (from 1).

    The first `warmup_steps` updates rise linearly, s / warmup_steps. Then `linear` falls from 1 towards 0 at
    `total_steps`, 1 - p, and `cosine` falls as (1 + cos(pi p)) / 2, with p = (s - 1 - warmup) / (total - warmup). These
    are Hugging Face's get_linear_schedule_with_warmup and get_cosine_schedule_with_warmup, without the idle first
    step.
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
