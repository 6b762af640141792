"""Formulas of optimizers: how an update changes the weights, given the optimizer's slots.

The formulas are those of the documentation of torch.optim.SGD, Adam and AdamW, and of keras.optimizers. The slots are
the optimizer's arrays by "slot.parameter": "momentum_buffer" of SGD, and the moments "exp_avg" and "exp_avg_sq" of
Adam.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from common.diagnose.explain.update_settings import (
    AFTER_CORRECTION,
    BEFORE_CORRECTION,
    INSIDE_ROOT,
    Betas,
    UpdateSettings,
)
from common.diagnose.rounding import MACHINE_EPSILON, precision_of_weights

Arrays = Mapping[str, np.ndarray]  # weights and gradients by parameter, or slots by "slot.parameter"
SMALLEST_ERROR = 1e-8  # relative to the norm of all changes: Keras computes scalars in float32
WEIGHT_EPSILONS, CHANGE_EPSILONS = 1, 20  # bounds of rounding errors: epsilons of a weight, of its change


@dataclass(frozen=True)
class OptimizerUpdate:
    """One update of a run's weights.

    Attributes:
        settings: Hyperparameters of the update.
        step: Number of the step.
        replicas: Number of replicas.
        weights_before: Weights before the update.
        weights_after: Weights after the update.
        slots_before: Slots before the update.
        slots_after: Slots after the update.
        gradients: Gradients that the update used, without weight decay.
        scalar_error: Relative error of scalars such as 1 - beta, if the framework computes them in float32.
    """

    settings: UpdateSettings
    step: int
    replicas: int
    weights_before: Arrays
    weights_after: Arrays
    slots_before: Arrays
    slots_after: Arrays
    gradients: Arrays
    scalar_error: float = 0.0

    @property
    def machine_epsilon(self) -> float:
        """Machine epsilon of the weights and slots."""
        return MACHINE_EPSILON[precision_of_weights(self.settings.precision)]

    @cached_property
    def names(self) -> list[str]:
        """Parameters with a gradient."""
        return [name for name, gradient in self.gradients.items() if name in self.weights_before and gradient.any()]

    @cached_property
    def changes(self) -> dict[str, np.ndarray]:
        """The change of each parameter that has a gradient."""
        return {name: self.weights_after[name] - self.weights_before[name] for name in self.names}

    @property
    def tolerance(self) -> float:
        """Largest relative error of a formula that rounding explains.

        Weights are rounded after each update and are far larger than their change. Keras computes the bias correction
        1 - beta2^step in float32, which loses digits in the first steps.
        """
        weights = _norm_of(self.weights_before[name] for name in self.names)
        changes = _norm_of(self.changes.values())
        rounding = self.machine_epsilon * (WEIGHT_EPSILONS * weights / (changes or 1.0) + CHANGE_EPSILONS)
        return max(SMALLEST_ERROR, rounding + self.scalar_error)


@dataclass(frozen=True)
class UpdateFormula:
    """Formula of an update: the formula of a run's config, or a variant of it that stands for a fault.

    Attributes:
        kind: "sgd" or "adam".
        rate: Learning rate.
        epsilon: Adam's epsilon.
        epsilon_place: One of EPSILON_PLACES.
        has_bias_correction: Whether Adam's slots are divided by 1 - beta**step.
        decay: Decoupled weight decay, which is multiplied by the learning rate.
        decays_vectors: Whether biases and the weights of normalizations decay too.
        cause: Names of the faults that this variant stands for, joined by "+"; empty for the config's formula.
        sentence: Description of what differs from the formula of the config; empty for that formula.
    """

    kind: str
    rate: float
    epsilon: float = 0.0
    epsilon_place: str = AFTER_CORRECTION
    has_bias_correction: bool = True
    decay: float = 0.0
    decays_vectors: bool = True
    cause: str = ""
    sentence: str = ""

    @property
    def causes(self) -> list[str]:
        """Names of the causes."""
        return self.cause.split("+")

    def compute_changes(self, weights: Arrays, slots: Arrays, betas: Betas, step: int) -> dict[str, np.ndarray]:
        """Return the change of each weight: the weight after the update minus the weight before it.

        Args:
            weights: Weights before the update.
            slots: Slots after the update.
            betas: Decay rates of Adam's slots.
            step: Number of the step.
        """
        changes = {}
        for name, weight in weights.items():
            decay = self.decay if self.decays_vectors or weight.ndim > 1 else 0.0
            if self.kind == "sgd":
                direction = slots[f"momentum_buffer.{name}"]
            else:
                direction = self._adam_direction(slots[f"exp_avg.{name}"], slots[f"exp_avg_sq.{name}"], betas, step)
            changes[name] = -self.rate * (direction + decay * weight)
        return changes

    def _adam_direction(self, first: np.ndarray, second: np.ndarray, betas: Betas, step: int) -> np.ndarray:
        """Return the change that Adam's first and second moment lead to, before the learning rate and the sign."""
        correction1, correction2 = (1 - beta**step if self.has_bias_correction else 1.0 for beta in betas)
        if self.epsilon_place == BEFORE_CORRECTION:
            return np.asarray(first / correction1 / ((np.sqrt(second) + self.epsilon) / np.sqrt(correction2)))
        if self.epsilon_place == INSIDE_ROOT:
            return np.asarray(first / correction1 / np.sqrt(second / correction2 + self.epsilon))
        return np.asarray(first / correction1 / (np.sqrt(second / correction2) + self.epsilon))


def configured_formula(update: OptimizerUpdate) -> UpdateFormula:
    """Return the formula that the hyperparameters of the update describe."""
    settings = update.settings
    decay = settings.weight_decay if settings.kind == "adamw" else 0.0
    kind = "sgd" if settings.kind == "sgd" else "adam"
    return UpdateFormula(kind, settings.rate, settings.epsilon, settings.epsilon_place, decay=decay)


def measure_error(formula: UpdateFormula, update: OptimizerUpdate) -> float:
    """Return the norm of formula's changes - update's changes, divided by the norm of the update's changes."""
    names, changes = update.names, update.changes
    weights = {name: update.weights_before[name] for name in names}
    with np.errstate(divide="ignore", invalid="ignore"):  # an epsilon of 0 and a gradient of 0
        computed = formula.compute_changes(weights, update.slots_after, update.settings.betas, update.step)
    difference = _norm_of(computed[name] - changes[name] for name in names)
    if np.isnan(difference):
        return np.inf
    size = _norm_of(changes.values())
    return difference / size if size else (0.0 if difference == 0 else np.inf)


def _norm_of(arrays: Iterable[np.ndarray]) -> float:
    """Return the norm of some arrays as one vector."""
    return float(sum(float(np.square(array).sum()) for array in arrays) ** 0.5)
