"""Hyperparameters that decide an update, as plain values: those of a run's config, or of a script's optimizer."""

from dataclasses import dataclass

from common.config.schema import Config
from common.training.schedule import compute_learning_rate, find_update_settings

Betas = tuple[float, float]

# Where Adam adds its epsilon to the root of the second moment
AFTER_CORRECTION = "after the bias correction"
BEFORE_CORRECTION = "before the bias correction"
INSIDE_ROOT = "inside the root"
EPSILON_PLACES = (AFTER_CORRECTION, BEFORE_CORRECTION, INSIDE_ROOT)


@dataclass(frozen=True)
class UpdateSettings:
    """Hyperparameters of one update.

    Attributes:
        kind: "sgd", "adam", whose weight decay is part of the gradient, or "adamw".
        precision: Precision in which the run trains.
        rate: Learning rate of the update.
        previous_rate: Learning rate of the previous update; 0 before the first update.
        next_rate: Learning rate of the next update.
        base_rate: Learning rate without a schedule.
        momentum: Momentum of SGD.
        betas: Decay rates of Adam's slots.
        epsilon: Adam's epsilon.
        epsilon_place: One of EPSILON_PLACES.
        weight_decay: Weight decay.
        max_grad_norm: Norm to which the gradients are clipped; None: no clipping.
    """

    kind: str
    precision: str
    rate: float
    previous_rate: float
    next_rate: float
    base_rate: float
    momentum: float = 0.0
    betas: Betas = (0.0, 0.0)
    epsilon: float = 0.0
    epsilon_place: str = AFTER_CORRECTION
    weight_decay: float = 0.0
    max_grad_norm: float | None = None


def read_update_settings(config: Config, step: int, plateau_factor: float = 1.0) -> UpdateSettings:
    """Return the hyperparameters of a run's update, from 1, as its config has them.

    plateau_factor: by how much schedule=plateau has lowered the learning rate before the update.
    """
    optimizer = find_update_settings(config, step)
    return UpdateSettings(
        kind=optimizer.kind,
        precision=config.train.precision,
        rate=compute_learning_rate(config, step) * plateau_factor,
        previous_rate=compute_learning_rate(config, step - 1) * plateau_factor if step > 1 else 0.0,
        next_rate=compute_learning_rate(config, step + 1) * plateau_factor,
        base_rate=optimizer.learning_rate,
        momentum=optimizer.momentum or 0.0,
        betas=(optimizer.beta1 or 0.0, optimizer.beta2 or 0.0),
        epsilon=optimizer.epsilon or 0.0,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
    )
