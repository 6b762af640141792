"""Lower the learning rate when the validation metric stops improving (schedule=plateau).

The rule is that of torch.optim.lr_scheduler.ReduceLROnPlateau, without the argument eps.
"""

import math

from common.config.schedules import PlateauSettings
from common.training.state import PlateauValues


def update_plateau(
    settings: PlateauSettings, plateau: PlateauValues | None, value: float, higher_is_better: bool
) -> PlateauValues:
    """Return the plateau after one more evaluation.

    Args:
        settings: the settings of the schedule.
        plateau: the plateau before the evaluation; None before the first evaluation.
        value: the validation loss or metric that the schedule follows. nan does not count as an improvement.
        higher_is_better: whether a higher value is better.
    """
    if plateau is None:
        plateau = PlateauValues(factor=1.0, best=None, bad_evaluations=0, cooldown=0)
    factor, best, bad, cooldown = plateau["factor"], plateau["best"], plateau["bad_evaluations"], plateau["cooldown"]
    if _is_better(settings, value, best, higher_is_better):
        best, bad = value, 0
    else:
        bad += 1
    if cooldown > 0:
        cooldown -= 1
        bad = 0
    if bad > settings.patience:
        factor = max(factor * settings.factor, settings.min_factor)
        cooldown = settings.cooldown
        bad = 0
    return PlateauValues(factor=factor, best=best, bad_evaluations=bad, cooldown=cooldown)


def _is_better(settings: PlateauSettings, value: float, best: float | None, higher_is_better: bool) -> bool:
    threshold = settings.threshold
    if best is None:
        return math.isfinite(value)
    if settings.threshold_mode == "relative":
        return value > best * (1 + threshold) if higher_is_better else value < best * (1 - threshold)
    return value > best + threshold if higher_is_better else value < best - threshold
