"""Hyperparameters of recorded optimizers in one vocabulary for PyTorch and Keras."""

from collections.abc import Mapping
from dataclasses import dataclass

from common.diagnose.explain.update_settings import AFTER_CORRECTION, BEFORE_CORRECTION, Betas
from common.diagnose.recorded.recorded_side import RecordedSide

Hyperparameters = Mapping[str, object]
DECOUPLED_IN_TORCH = {"adamw"}  # algorithms of PyTorch whose weight decay is no part of the gradient
NO_EMA = "none"
CLIPPING = {  # of Keras, with the words for a report
    "clipnorm": "each variable by the norm", "global_clipnorm": "all by the norm", "clipvalue": "each element to",
}  # fmt: skip


@dataclass(frozen=True)
class OptimizerSettings:
    """Hyperparameters with which an optimizer updates a parameter, but for the learning rate.

    Attributes:
        algorithm: "sgd", "adam" (also AdamW), or the name of another class in lower case.
        weight_decay: Weight decay.
        is_decoupled: Whether the decay is subtracted from the weights; otherwise it is added to the gradient.
        momentum: Momentum of SGD.
        nesterov: Whether the momentum is Nesterov's.
        betas: Decay rates of Adam's slots.
        epsilon: Epsilon.
        amsgrad: Whether Adam keeps the largest second moment.
        ema: Moving average of the weights that replaces them; "none" without one.
        clipping: Clipping within the optimizer, as (argument of Keras, value); None if there is none.
        epsilon_place: Where Adam adds its epsilon, which depends on the framework.
        rate_inside_velocity: Whether the slot of the momentum includes the learning rate, as Keras's does.
    """

    algorithm: str
    weight_decay: float = 0.0
    is_decoupled: bool = False
    momentum: float = 0.0
    nesterov: bool = False
    betas: Betas = (0.0, 0.0)
    epsilon: float = 0.0
    amsgrad: bool = False
    ema: str = NO_EMA
    clipping: tuple[str, float] | None = None
    epsilon_place: str = AFTER_CORRECTION
    rate_inside_velocity: bool = False

    @property
    def decay_matters(self) -> bool:
        """Return whether there is weight decay, so that its kind decides the update."""
        return self.weight_decay != 0


def read_optimizer_settings(side: RecordedSide) -> dict[str, OptimizerSettings]:
    """Return the settings of each parameter that the optimizer updates, by name."""
    optimizer = side.optimizer
    if optimizer is None:
        return {}
    name = optimizer["name"].rpartition(".")[2]
    return {
        parameter: _read_group(name.lower(), group["hyperparameters"], side.is_torch)
        for group in optimizer["groups"]
        for parameter in group["parameters"]
    }


def read_rates(side: RecordedSide, step: int) -> dict[str, float]:
    """Return the learning rate of each parameter in a step, by name."""
    optimizer, rates = side.optimizer, side.get_facts(step)["rates"]
    if optimizer is None or len(rates) not in (1, len(optimizer["groups"])):
        return {}
    rates = rates if len(rates) > 1 else rates * len(optimizer["groups"])
    return {
        parameter: rate
        for group, rate in zip(optimizer["groups"], rates, strict=True)
        for parameter in group["parameters"]
    }


def _read_group(name: str, values: Hyperparameters, is_torch: bool) -> OptimizerSettings:
    algorithm = "adam" if name in ("adam", "adamw") else name
    betas = values.get("betas")
    if not isinstance(betas, list | tuple) or len(betas) != 2:
        betas = [values.get("beta_1"), values.get("beta_2")]
    is_adam = algorithm == "adam"
    decoupled = values.get("decoupled_weight_decay", name in DECOUPLED_IN_TORCH) if is_torch else True
    clipping = next(((key, _to_number(values[key])) for key in CLIPPING if _to_number(values.get(key))), None)
    epsilon = _to_number(values.get("eps", values.get("epsilon")))
    return OptimizerSettings(
        algorithm,
        _to_number(values.get("weight_decay")),
        bool(decoupled),
        _to_number(values.get("momentum")),
        bool(values.get("nesterov")),
        (_to_number(betas[0]), _to_number(betas[1])),
        epsilon,
        bool(values.get("amsgrad")),
        _describe_ema(values),
        None if is_torch else clipping,
        BEFORE_CORRECTION if is_adam and not is_torch else AFTER_CORRECTION,
        not is_torch and algorithm == "sgd",
    )


def _describe_ema(values: Hyperparameters) -> str:
    """Return what a Keras optimizer says of the moving average of the weights."""
    if not values.get("use_ema"):
        return NO_EMA
    return f"{_to_number(values.get('ema_momentum')):g}, written every {values.get('ema_overwrite_frequency')} steps"


def _to_number(value: object) -> float:
    """Return a number as Keras rounds it in its messages: to nine digits."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(f"{value:.9g}") if is_number else 0.0
