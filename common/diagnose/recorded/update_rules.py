"""Formulas of the optimizers of PyTorch and Keras: how an update changes a parameter and its slots.

Slots are the optimizer's arrays, such as Adam's moments, by their names in PyTorch.

Source: the documentation of torch.optim.* and keras.optimizers.*. OptimizerSettings has their arguments, and fields
such as `epsilon_place` for what the frameworks do differently.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from common.diagnose.explain.update_settings import BEFORE_CORRECTION, INSIDE_ROOT
from common.diagnose.recorded.optimizer_settings import WITHIN_MAXIMUM, OptimizerSettings

Slots = Mapping[str, np.ndarray]
CANCELLATION_LIMIT = 1e-5  # a difference smaller than this share of its terms consists of float32 rounding errors
NADAM_BASE = 0.96  # NAdam's momentum approaches beta1 as 1 - 0.5 * NADAM_BASE ** (step * momentum_decay)


@dataclass(frozen=True)
class Parameter:
    """A parameter before an update.

    Attributes:
        settings: The settings of the optimizer for the parameter.
        rate: The learning rate.
        step: The number of the update, from 1.
        weight: The weights. Decoupled weight decay is already subtracted.
        gradient: The gradient to descend. Coupled weight decay is already added.
        slots: The slots before the update, by their names in PyTorch. A missing slot has not been created yet.
    """

    settings: OptimizerSettings
    rate: float
    step: int
    weight: np.ndarray
    gradient: np.ndarray
    slots: Slots

    def get(self, slot: str, initial: float = 0.0) -> np.ndarray:
        """Return a slot; a new one has the initial value."""
        return self.slots[slot] if slot in self.slots else np.full_like(self.gradient, initial)

    def average(self, slot: str, value: np.ndarray, decay: float) -> np.ndarray:
        """Return decay * slot + (1 - decay) * value."""
        return decay * self.get(slot) + (1 - decay) * value


Rule = Callable[[Parameter], tuple[np.ndarray, dict[str, np.ndarray]]]


def update_sgd(p: Parameter) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the decrease of the weights in an update of SGD, and the slots after the update."""
    s = p.settings
    if not s.momentum:
        return p.rate * p.gradient, {"momentum_buffer": p.gradient}  # not a slot, but the update's direction
    if s.rate_inside_velocity:  # Keras's momentum slot is the change that is added to the weights
        buffer = s.momentum * p.get("momentum_buffer") - p.rate * p.gradient
        change = p.rate * p.gradient - s.momentum * buffer if s.nesterov else -buffer
        return change, {"momentum_buffer": buffer}
    is_new = "momentum_buffer" not in p.slots
    share = 1.0 if is_new else 1 - s.dampening
    buffer = s.momentum * p.get("momentum_buffer") + share * p.gradient
    return p.rate * (p.gradient + s.momentum * buffer if s.nesterov else buffer), {"momentum_buffer": buffer}


def update_adam(p: Parameter) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the decrease of the weights in an update of Adam or AdamW, and the slots after the update."""
    s = p.settings
    slots = _advance_moments(p)
    second = slots["exp_avg_sq"]
    if s.amsgrad:
        second = slots["max_exp_avg_sq"] = np.maximum(p.get("max_exp_avg_sq"), second)
    correction1, correction2 = (1 - beta**p.step for beta in s.betas)
    if s.epsilon_place == BEFORE_CORRECTION:
        root = (np.sqrt(second) + s.epsilon) / np.sqrt(correction2)
    else:
        root = np.sqrt(second / correction2) + s.epsilon
    return p.rate * slots["exp_avg"] / correction1 / root, slots


def update_rmsprop(p: Parameter) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the decrease of the weights in an update of RMSprop, and the slots after the update."""
    s = p.settings
    slots = {"square_avg": p.average("square_avg", p.gradient**2, s.rho)}
    variance = slots["square_avg"]
    if s.centered:
        slots["grad_avg"] = p.average("grad_avg", p.gradient, s.rho)
        difference = variance - slots["grad_avg"] ** 2
        variance = np.where(difference < CANCELLATION_LIMIT * variance, np.nan, difference)
    direction = p.gradient / _add_epsilon(variance, s)
    if s.momentum:
        increment = p.rate * direction if s.rate_inside_velocity else direction
        direction = slots["momentum_buffer"] = s.momentum * p.get("momentum_buffer") + increment
        if s.rate_inside_velocity:
            return direction, slots
    return p.rate * direction, slots


def update_adagrad(p: Parameter) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the decrease of the weights in an update of Adagrad, and the slots after the update."""
    s = p.settings
    total = p.get("sum", s.initial_accumulator_value) + p.gradient**2
    rate = p.rate / (1 + (p.step - 1) * s.rate_decay)
    return rate * p.gradient / _add_epsilon(total, s), {"sum": total}


def update_adadelta(p: Parameter) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the decrease of the weights in an update of Adadelta, and the slots after the update."""
    s = p.settings
    squares = p.average("square_avg", p.gradient**2, s.rho)
    delta = np.sqrt(p.get("acc_delta") + s.epsilon) / np.sqrt(squares + s.epsilon) * p.gradient
    return p.rate * delta, {"square_avg": squares, "acc_delta": p.average("acc_delta", delta**2, s.rho)}


def update_adamax(p: Parameter) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the decrease of the weights in an update of Adamax, and the slots after the update."""
    s = p.settings
    is_within = s.epsilon_place == WITHIN_MAXIMUM
    first = p.average("exp_avg", p.gradient, s.betas[0])
    largest = np.maximum(s.betas[1] * p.get("exp_inf"), np.abs(p.gradient) + (s.epsilon if is_within else 0))
    divisor = largest if is_within else largest + s.epsilon
    return p.rate * first / (1 - s.betas[0] ** p.step) / divisor, {"exp_avg": first, "exp_inf": largest}


def update_nadam(p: Parameter) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the decrease of the weights in an update of NAdam, and the slots after the update."""
    s = p.settings
    slots = _advance_moments(p)
    momenta = [s.betas[0] * (1 - 0.5 * NADAM_BASE ** (step * s.momentum_decay)) for step in range(1, p.step + 2)]
    momentum, next_momentum = momenta[-2:]
    product = np.prod(momenta[:-1])
    root = np.sqrt(slots["exp_avg_sq"] / (1 - s.betas[1] ** p.step)) + s.epsilon
    average_share = next_momentum / (1 - product * next_momentum)
    direction = (1 - momentum) / (1 - product) * p.gradient + average_share * slots["exp_avg"]
    return p.rate * direction / root, slots


def update_radam(p: Parameter) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the decrease of the weights in an update of RAdam, and the slots after the update."""
    s = p.settings
    slots = _advance_moments(p)
    correction1, correction2 = (1 - beta**p.step for beta in s.betas)
    rho_inf = 2 / (1 - s.betas[1]) - 1
    rho_t = rho_inf - 2 * p.step * s.betas[1] ** p.step / correction2
    direction = slots["exp_avg"] / correction1
    if rho_t > 5:
        ratio = (rho_t - 4) * (rho_t - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho_t)
        direction = direction * np.sqrt(ratio * correction2) / (np.sqrt(slots["exp_avg_sq"]) + s.epsilon)
    return p.rate * direction, slots


def update_lion(p: Parameter) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the decrease of the weights in an update of Lion, and the slots after the update."""
    beta1, beta2 = p.settings.betas
    terms = beta1 * p.get("exp_avg"), (1 - beta1) * p.gradient
    total = terms[0] + terms[1]
    is_rounding = (total != 0) & (np.abs(total) < CANCELLATION_LIMIT * (np.abs(terms[0]) + np.abs(terms[1])))
    sign = np.where(is_rounding, np.nan, np.sign(total))
    return p.rate * sign, {"exp_avg": p.average("exp_avg", p.gradient, beta2)}


RULES: Mapping[str, Rule] = {
    "sgd": update_sgd,
    "adam": update_adam,
    "rmsprop": update_rmsprop,
    "adagrad": update_adagrad,
    "adadelta": update_adadelta,
    "adamax": update_adamax,
    "nadam": update_nadam,
    "radam": update_radam,
    "lion": update_lion,
}


def compute_update(p: Parameter) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the weights and the slots of a parameter after an update. Elements that rounding decides are NaN."""
    change, slots = RULES[p.settings.algorithm](p)
    weight = p.weight - change
    if p.settings.averaging is not None:
        momentum, frequency = p.settings.averaging
        average = weight if p.step == 1 else momentum * p.get("average") + (1 - momentum) * weight
        slots["average"] = average
        weight = average if p.step % frequency == 0 else weight
    return weight, slots


def _advance_moments(p: Parameter) -> dict[str, np.ndarray]:
    """Return Adam's moments after an update."""
    beta1, beta2 = p.settings.betas
    return {
        "exp_avg": p.average("exp_avg", p.gradient, beta1),
        "exp_avg_sq": p.average("exp_avg_sq", p.gradient**2, beta2),
    }


def _add_epsilon(variance: np.ndarray, settings: OptimizerSettings) -> np.ndarray:
    """Return the root of a variance with the epsilon inside or outside of it."""
    if settings.epsilon_place == INSIDE_ROOT:
        return np.asarray(np.sqrt(variance + settings.epsilon))
    return np.asarray(np.sqrt(variance) + settings.epsilon)
