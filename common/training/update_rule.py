"""The interface of an update rule, which computes the change of one parameter for either framework."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from common.config.keras_layout import KerasLayout
from common.config.optimizer_settings import OptimizerSettings

Array = Any  # a tensor or an array; the frameworks share no type
Update = tuple[Array, list[Array]]  # the change, which is added to the weights, and the slots after the update
SettingsT = TypeVar("SettingsT", bound=OptimizerSettings)
DECOUPLED = ("adamw", "adafactor", "muon")  # the kinds of PyTorch that subtract weight decay from the weights


class RuleInputs(NamedTuple):
    """Inputs from which a rule computes the change of one parameter; `Rule.compute` describes the fields."""

    xp: ModuleType
    weight: Array  # Keras's updates get it after decoupled weight decay, PyTorch's before
    gradient: Array  # includes the weight decay, unless the decay is decoupled
    slots: Sequence[Array]
    rate: Array
    factors: Sequence[Array]  # the result of `_compute_factors`


class Rule(ABC, Generic[SettingsT]):
    """The update rule of one kind of optimizer.

    Attributes:
        settings: The settings of the optimizer.
        is_keras: Whether the formulas are Keras's.
        is_decoupled: Whether weight decay is subtracted from the weights; otherwise it is added to the gradient.
    """

    # The length of the result of `compute_scalars`: the learning rate, the weight decay, and the factors of the kind.
    scalar_count: ClassVar[int] = 2

    def __init__(self, settings: SettingsT) -> None:
        self.settings = settings
        self.is_keras = settings.semantics == "keras"
        self.is_decoupled = self.is_keras or settings.kind in DECOUPLED

    def compute_scalars(self, rate: float, weight_decay: float, step: int) -> list[float]:
        """Return the scalars of the update with number `step`, from 1."""
        return [rate, rate * weight_decay if self.is_decoupled else weight_decay, *self._compute_factors(rate, step)]

    def compute(
        self,
        xp: ModuleType,
        weight: Array,
        gradient: Array,
        slots: Sequence[Array],
        scalars: Sequence[Array],
        layout: KerasLayout | None = None,
    ) -> Update:
        """Return the change of a parameter and its slots after the update, without changing the arguments.

        Args:
            xp: The module whose functions compute the update.
            weight: The parameter.
            gradient: The gradient, of the same shape.
            slots: The slots, in the order of `settings.list_slots`.
            scalars: The result of `compute_scalars`, of the type of the parameter.
            layout: The layout in which the update is computed, `settings.find_layout`; None for the parameter's.
        """
        if layout is not None:
            keras_arrays = layout.to_keras(xp, weight), layout.to_keras(xp, gradient)
            change, new_slots = self.compute(xp, *keras_arrays, slots, scalars)
            return layout.to_torch(xp, change, tuple(weight.shape)), new_slots
        rate, decay, *factors = scalars
        if self.is_decoupled:
            loss = weight * decay
            decayed = weight - loss if self.is_keras else weight
            change, new_slots = self._compute(RuleInputs(xp, decayed, gradient, slots, rate, factors))
            return change - loss, new_slots
        return self._compute(RuleInputs(xp, weight, gradient + weight * decay, slots, rate, factors))

    def _compute_factors(self, rate: float, step: int) -> list[float]:
        """Return the further scalars of this kind of optimizer for update `step`, from 1; by default none."""
        return []

    @abstractmethod
    def _compute(self, inputs: RuleInputs) -> Update:
        """Return the change without decoupled weight decay, and the slots."""


def average_moments(settings: OptimizerSettings, gradient: Array, slots: Sequence[Array]) -> list[Array]:
    """Return Adam's moments after an update."""
    beta1, beta2 = settings.beta1, settings.beta2
    assert beta1 is not None and beta2 is not None
    return [beta1 * slots[0] + (1 - beta1) * gradient, beta2 * slots[1] + (1 - beta2) * gradient * gradient]
