"""Checks of schedules that need evaluations of the run, or a momentum of its optimizer."""

from common.config.metric_checks import check_followed_value
from common.config.schedules import PlateauSettings
from common.config.schema import Config
from common.errors import UserError


def check_plateau(config: Config) -> None:
    """Raise UserError if the schedule follows evaluations that the run does not make, or a metric that it lacks."""
    schedule, train = config.schedule, config.train
    if not isinstance(schedule, PlateauSettings):
        return
    if train.eval_every is None and train.virtual_epoch_examples is None:
        raise UserError("schedule=plateau: follows evaluations; give train.eval_every=... too")
    check_followed_value(config, "schedule.metric", schedule.metric)


def check_cycled_momentum(config: Config) -> None:
    """Raise UserError if the schedule sets a momentum that the optimizer does not have."""
    optimizer = config.optimizer
    if not config.schedule.sets_momentum:
        return
    problem = "schedule.cycle_momentum=true:"
    if optimizer.momentum_key is None:
        raise UserError(f"{problem} the momentum of optimizer.kind={optimizer.kind} cannot be cycled; set it to false")
    if not getattr(optimizer, optimizer.momentum_key):
        raise UserError(f"{problem} optimizer.{optimizer.momentum_key} has no value or is 0; set it, such as to 0.9")
    if optimizer.semantics == "native":
        raise UserError(
            f"{problem} Keras's optimizers have a fixed momentum; set optimizer.semantics to aligned or keras"
        )
