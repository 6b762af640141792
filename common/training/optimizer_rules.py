"""Update rules of the optimizers that no fused operation computes, written once for both frameworks.

A rule computes the change of one parameter with operators and with functions of the module `xp`: torch, tensorflow or
numpy. The numbers that depend on the step are scalars, which `compute_scalars` computes in float64 before the update: a
compiled float32 step would round them.

With `semantics: aligned`, the formulas come from the documentation of torch.optim. With `semantics: keras`, they come
from keras.optimizers. Every constant has full precision, although Keras itself rounds some constants to float32.
"""

from typing import Any

import numpy as np

from common.config.optimizer_settings import OptimizerSettings
from common.config.optimizers import (
    AdadeltaSettings,
    AdagradSettings,
    AdamaxSettings,
    AdamSettings,
    NadamSettings,
    RmspropSettings,
    SgdSettings,
)
from common.training.layout_rules import AdafactorRule, MuonRule
from common.training.update_rule import Rule, RuleInputs, Update, average_moments

NADAM_BASE = 0.96  # base of the power in the schedule of NAdam's momentum, in both frameworks


class SgdRule(Rule[SgdSettings]):
    """SGD with momentum. Keras's momentum includes the learning rate."""

    scalar_count = 3

    def _compute_factors(self, rate: float, step: int) -> list[float]:
        return [1 - self.settings.dampening if step > 1 else 1.0]  # the first momentum is the gradient

    def _compute(self, inputs: RuleInputs) -> Update:
        gradient, slots, rate, factors = inputs.gradient, inputs.slots, inputs.rate, inputs.factors
        momentum = self.settings.momentum
        if not slots:
            return -rate * gradient, []
        if self.is_keras:
            buffer = momentum * slots[0] - rate * gradient
            return momentum * buffer - rate * gradient if self.settings.nesterov else buffer, [buffer]
        buffer = momentum * slots[0] + factors[0] * gradient
        return -rate * (gradient + momentum * buffer if self.settings.nesterov else buffer), [buffer]


class AdamRule(Rule[AdamSettings]):
    """Adam and AdamW. PyTorch adds the epsilon after the bias correction, Keras before it."""

    scalar_count = 4

    def _compute_factors(self, rate: float, step: int) -> list[float]:
        beta1, beta2 = self.settings.beta1, self.settings.beta2
        assert beta1 is not None and beta2 is not None
        correction = (1 - beta2**step) ** 0.5
        if self.is_keras:
            return [rate * correction / (1 - beta1**step), 1.0]
        return [rate / (1 - beta1**step), correction]

    def _compute(self, inputs: RuleInputs) -> Update:
        xp, gradient, slots, factors = inputs.xp, inputs.gradient, inputs.slots, inputs.factors
        first, second = average_moments(self.settings, gradient, slots)
        largest = [xp.maximum(slots[2], second)] if self.settings.amsgrad else []
        root = xp.sqrt((largest or [second])[0]) / factors[1] + self.settings.epsilon
        return -factors[0] * first / root, [first, second, *largest]


class RmspropRule(Rule[RmspropSettings]):
    """RMSprop. Keras adds the epsilon within the root, and its momentum includes the learning rate."""

    def _compute(self, inputs: RuleInputs) -> Update:
        xp, gradient, slots, rate = inputs.xp, inputs.gradient, inputs.slots, inputs.rate
        settings, is_keras = self.settings, self.is_keras
        rho = settings.rho
        square = rho * slots[0] + (1 - rho) * gradient * gradient
        new_slots, variance = [square], square
        if settings.centered:
            mean = rho * slots[1] + (1 - rho) * gradient
            new_slots, variance = [square, mean], square - mean * mean
        root = xp.sqrt(variance + settings.epsilon) if is_keras else xp.sqrt(variance) + settings.epsilon
        direction = rate * gradient / root if is_keras else gradient / root
        if len(slots) > len(new_slots):  # the last slot is the momentum
            direction = settings.momentum * slots[-1] + direction
            new_slots.append(direction)
        return -direction if is_keras else -rate * direction, new_slots


class AdagradRule(Rule[AdagradSettings]):
    """Adagrad. Keras adds the epsilon within the root."""

    def _compute(self, inputs: RuleInputs) -> Update:
        xp, gradient, slots, rate = inputs.xp, inputs.gradient, inputs.slots, inputs.rate
        total, epsilon = slots[0] + gradient * gradient, self.settings.epsilon
        root = xp.sqrt(total + epsilon) if self.is_keras else xp.sqrt(total) + epsilon
        return -rate * gradient / root, [total]


class AdadeltaRule(Rule[AdadeltaSettings]):
    """Adadelta, which is the same in both frameworks."""

    def _compute(self, inputs: RuleInputs) -> Update:
        xp, gradient, slots, rate = inputs.xp, inputs.gradient, inputs.slots, inputs.rate
        rho, epsilon = self.settings.rho, self.settings.epsilon
        square = rho * slots[0] + (1 - rho) * gradient * gradient
        delta = xp.sqrt(slots[1] + epsilon) / xp.sqrt(square + epsilon) * gradient
        return -rate * delta, [square, rho * slots[1] + (1 - rho) * delta * delta]


class AdamaxRule(Rule[AdamaxSettings]):
    """Adamax. PyTorch adds the epsilon to the gradient, Keras to the largest one."""

    scalar_count = 3

    def _compute_factors(self, rate: float, step: int) -> list[float]:
        assert self.settings.beta1 is not None
        return [rate / (1 - self.settings.beta1**step)]

    def _compute(self, inputs: RuleInputs) -> Update:
        xp, gradient, slots, factors = inputs.xp, inputs.gradient, inputs.slots, inputs.factors
        beta1, beta2, epsilon = self.settings.beta1, self.settings.beta2, self.settings.epsilon
        assert beta1 is not None and beta2 is not None and epsilon is not None
        first = beta1 * slots[0] + (1 - beta1) * gradient
        magnitude = abs(gradient)
        largest = xp.maximum(beta2 * slots[1], magnitude if self.is_keras else magnitude + epsilon)
        return -factors[0] * first / (largest + epsilon if self.is_keras else largest), [first, largest]


class NadamRule(Rule[NadamSettings]):
    """NAdam, the same in both frameworks except for the decay of the momentum's schedule."""

    scalar_count = 5

    def _compute_factors(self, rate: float, step: int) -> list[float]:
        settings = self.settings
        assert settings.beta1 is not None and settings.beta2 is not None
        product = compute_nadam_product(settings, step)
        momentum, next_momentum = (float(_compute_nadam_momentum(settings, number)) for number in (step, step + 1))
        return [
            rate * (1 - momentum) / (1 - product),
            rate * next_momentum / (1 - product * next_momentum),
            (1 - settings.beta2**step) ** 0.5,
        ]

    def _compute(self, inputs: RuleInputs) -> Update:
        xp, gradient, slots, factors = inputs.xp, inputs.gradient, inputs.slots, inputs.factors
        first, second = average_moments(self.settings, gradient, slots)
        root = xp.sqrt(second) / factors[2] + self.settings.epsilon
        return -(factors[0] * gradient + factors[1] * first) / root, [first, second]


def compute_nadam_product(settings: NadamSettings, step: int) -> float:
    """Return the product of the momentums of NAdam's first `step` updates."""
    return float(np.prod(_compute_nadam_momentum(settings, np.arange(1, step + 1))))


def _compute_nadam_momentum(settings: NadamSettings, step: int | np.ndarray) -> np.ndarray:
    """Return the momentum of an update, from 1."""
    assert settings.beta1 is not None
    return np.asarray(settings.beta1 * (1 - 0.5 * NADAM_BASE ** (step * settings.resolved_momentum_decay)))


RULES: dict[str, type[Rule[Any]]] = {
    "sgd": SgdRule,
    "adam": AdamRule,
    "adamw": AdamRule,
    "rmsprop": RmspropRule,
    "adagrad": AdagradRule,
    "adadelta": AdadeltaRule,
    "adamax": AdamaxRule,
    "nadam": NadamRule,
    "adafactor": AdafactorRule,
    "muon": MuonRule,
}


def build_rule(settings: OptimizerSettings) -> Rule[Any]:
    """Return the update rule of an optimizer."""
    return RULES[settings.kind](settings)
