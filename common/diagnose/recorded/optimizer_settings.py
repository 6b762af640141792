"""Hyperparameters of recorded optimizers in one vocabulary for PyTorch and Keras."""

from collections.abc import Mapping
from dataclasses import dataclass

from common.diagnose.explain.second_moment import HALF_EPSILON
from common.diagnose.explain.update_settings import AFTER_CORRECTION, BEFORE_CORRECTION, INSIDE_ROOT, Betas
from common.diagnose.recorded.recorded_side import RecordedSide

Hyperparameters = Mapping[str, object]
DECOUPLED_IN_TORCH = {"adamw"}  # algorithms of PyTorch that do not add weight decay to the gradient
CLIPPING = ("clipnorm", "global_clipnorm", "clipvalue")  # arguments of Keras's optimizers that clip gradients
FRAMEWORKS = ("torch.optim.", "keras.", "tf_keras.", "tensorflow.python.keras.")  # where known classes are defined
LEGACY = ".legacy."  # part of the qualified names of Keras's older optimizers, some of which have other formulas
OUTSIDE_ROOT, WITHIN_MAXIMUM, AFTER_MAXIMUM = "outside the root", "within the maximum", "after the maximum"
# Where an algorithm adds the epsilon, in PyTorch and in Keras; other algorithms add it after the bias correction
EPSILON_PLACES = {
    "adam": (AFTER_CORRECTION, BEFORE_CORRECTION),
    "rmsprop": (OUTSIDE_ROOT, INSIDE_ROOT),
    "adagrad": (OUTSIDE_ROOT, INSIDE_ROOT),
    "adamax": (WITHIN_MAXIMUM, AFTER_MAXIMUM),
}
KERAS_MOMENTUM_DECAY = 1.0  # the `momentum_decay` of PyTorch's NAdam that gives the fixed formula of Keras's Nadam


@dataclass(frozen=True)
class OptimizerSettings:
    """Hyperparameters with which an optimizer updates a parameter, except for the learning rate.

    Attributes:
        algorithm: Name of the class in lower case, such as "adam" for Adam and AdamW. A class that neither PyTorch nor
            Keras defines has its qualified name.
        weight_decay: Weight decay.
        is_decoupled: Whether the decay is subtracted from the weights; otherwise it is added to the gradient.
        momentum: Momentum of SGD and RMSprop.
        nesterov: Whether the momentum is Nesterov's.
        dampening: Share of the gradient that the momentum of SGD leaves out.
        betas: Decay rates of the slots of Adam, its relatives and Lion.
        rho: Decay rate of the slots of RMSprop, PyTorch's alpha, and of Adadelta.
        centered: Whether RMSprop divides by the variance of the gradients instead of their second moment.
        initial_accumulator_value: Value with which Adagrad's sum begins.
        rate_decay: Decay of Adagrad's learning rate with each update.
        momentum_decay: Exponent of the schedule of NAdam's momentum.
        epsilon: Epsilon.
        amsgrad: Whether Adam keeps the largest second moment.
        maximize: Whether the update ascends.
        averaging: Momentum of a moving average of the weights, and the number of updates after which it replaces the
            weights; None if it never does.
        clipping: The argument by which a Keras optimizer clips gradients, and its value; None if it does not clip.
        epsilon_place: The place of the epsilon in the formula, which depends on the framework.
        rate_inside_velocity: Whether the slot of the momentum includes the learning rate, as Keras's does.
        rounds_scalars: Whether scalars such as 1 - beta are computed in float32, as Keras and the kernels of PyTorch's
            fused and capturable optimizers on a GPU do.
    """

    algorithm: str
    weight_decay: float = 0.0
    is_decoupled: bool = False
    momentum: float = 0.0
    nesterov: bool = False
    dampening: float = 0.0
    betas: Betas = (0.0, 0.0)
    rho: float = 0.0
    centered: bool = False
    initial_accumulator_value: float = 0.0
    rate_decay: float = 0.0
    momentum_decay: float = 0.0
    epsilon: float = 0.0
    amsgrad: bool = False
    maximize: bool = False
    averaging: tuple[float, int] | None = None
    clipping: tuple[str, float] | None = None
    epsilon_place: str = AFTER_CORRECTION
    rate_inside_velocity: bool = False
    rounds_scalars: bool = False

    @property
    def decay_matters(self) -> bool:
        """Return whether there is weight decay. Only then does `is_decoupled` change the update."""
        return self.weight_decay != 0

    @property
    def scalar_error(self) -> float:
        """Relative error of the scalar 1 - beta, which loses digits."""
        return HALF_EPSILON / (1 - min(max(*self.betas, self.rho), 1 - HALF_EPSILON)) if self.rounds_scalars else 0.0

    @property
    def is_plain(self) -> bool:
        """Return whether the update is the plain formula of SGD, Adam or AdamW."""
        has_options = self.amsgrad or self.dampening or self.averaging is not None
        return self.algorithm in ("sgd", "adam") and not has_options


def read_optimizer_settings(side: RecordedSide) -> dict[str, OptimizerSettings]:
    """Return the settings of each parameter that the optimizer updates, by name."""
    optimizer = side.optimizer
    if optimizer is None:
        return {}
    return {
        parameter: _read_group(optimizer["name"], group["hyperparameters"], side.is_torch)
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


def _read_group(qualified_name: str, values: Hyperparameters, is_torch: bool) -> OptimizerSettings:
    is_known = qualified_name.startswith(FRAMEWORKS)
    name = qualified_name.rpartition(".")[2].lower() if is_known else qualified_name
    algorithm = "adam" if name in ("adam", "adamw") else name
    if is_known and LEGACY in qualified_name and algorithm not in ("adam", "sgd"):
        algorithm = qualified_name
    decoupled = values.get("decoupled_weight_decay", name in DECOUPLED_IN_TORCH) if is_torch else True
    clipping = next(((key, _to_number(values[key])) for key in CLIPPING if _to_number(values.get(key))), None)
    places = EPSILON_PLACES.get(algorithm, (AFTER_CORRECTION, AFTER_CORRECTION))
    momentum_decay = _to_number(values.get("momentum_decay")) if is_torch else KERAS_MOMENTUM_DECAY
    return OptimizerSettings(
        algorithm,
        _to_number(values.get("weight_decay")),
        bool(decoupled),
        _to_number(values.get("momentum")),
        bool(values.get("nesterov")),
        _to_number(values.get("dampening")),
        _read_betas(values),
        _to_number(values.get("alpha", values.get("rho"))) if algorithm in ("rmsprop", "adadelta") else 0.0,
        bool(values.get("centered")),
        _to_number(values.get("initial_accumulator_value")),
        _to_number(values.get("lr_decay")),
        momentum_decay if algorithm == "nadam" else 0.0,
        _to_number(values.get("eps", values.get("epsilon"))),
        bool(values.get("amsgrad")),
        bool(values.get("maximize")),
        _read_averaging(values),
        None if is_torch else clipping,
        places[0] if is_torch else places[1],
        not is_torch and algorithm in ("sgd", "rmsprop"),
        not is_torch or bool(values.get("fused") or values.get("capturable")),
    )


def _read_betas(values: Hyperparameters) -> Betas:
    betas = values.get("betas")
    if not isinstance(betas, list | tuple) or len(betas) != 2:
        betas = [values.get("beta_1"), values.get("beta_2")]
    return _to_number(betas[0]), _to_number(betas[1])


def _read_averaging(values: Hyperparameters) -> tuple[float, int] | None:
    frequency = int(_to_number(values.get("ema_overwrite_frequency")))
    return (_to_number(values.get("ema_momentum")), frequency) if values.get("use_ema") and frequency > 0 else None


def _to_number(value: object) -> float:
    """Return a number as Keras rounds it in its messages: to nine digits."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(f"{value:.9g}") if is_number else 0.0
