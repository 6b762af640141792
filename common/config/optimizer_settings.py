"""The settings that every kind of optimizer has.

Each field is a key of the config, such as optimizer.weight_decay. `key(CURVE, ...)` declares its limits, and that it
decides the loss curve. The files in conf/optimizer have the default values and explain the keys.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from common.config.keras_layout import KerasLayout, Shape
from common.config.keys import CURVE, key
from common.config.parameter_groups import check_groups
from common.errors import UserError

CLIPPING = ("max_grad_norm", "clip_norm", "clip_value")


@dataclass(frozen=True)
class OptimizerSettings:
    """Settings that every kind of optimizer has.

    `momentum`, `beta1`, `beta2` and `epsilon` are null for kinds that do not use them. With `semantics: aligned` both
    sides compute the update that PyTorch documents, with `keras` the update that Keras documents, and with `native`
    each framework computes its own.
    """

    needs: ClassVar[tuple[str, ...]] = ()  # the keys that must have a value
    momentum_key: ClassVar[str | None] = None  # key of the momentum that a schedule can cycle; None: no such key
    uses_layout: ClassVar[bool] = False  # whether an update needs the whole parameter, in its layout

    kind: str = key(CURVE)
    semantics: str = key(CURVE, choices=("aligned", "keras", "native"))
    learning_rate: float = key(CURVE, at_least=0)
    weight_decay: float = key(CURVE, at_least=0)
    max_grad_norm: float | None = key(CURVE, above=0, finite=False, null="for no clipping")
    clip_norm: float | None = key(CURVE, above=0, null="for no clipping")
    clip_value: float | None = key(CURVE, above=0, null="for no clipping")
    groups: list[Any] = key(CURVE)
    momentum: float | None = key(CURVE, at_least=0, below=1)
    beta1: float | None = key(CURVE, at_least=0, below=1)
    beta2: float | None = key(CURVE, at_least=0, below=1)
    epsilon: float | None = key(CURVE, at_least=0)

    def check(self) -> None:
        """Raise UserError if a value is missing, or if values do not fit together."""
        for name in self.needs:
            if getattr(self, name) is None:
                raise UserError(f"optimizer.{name}=null: {self.kind} needs a value; give optimizer.{name}=...")
        clipping = [name for name in CLIPPING if getattr(self, name) is not None]
        if len(clipping) > 1:
            first, second = (f"optimizer.{name}={getattr(self, name):g}" for name in clipping[:2])
            raise UserError(f"{first} and {second}: gradients are clipped in one way; set one of them to null")
        check_groups(self.groups)
        if self.semantics == "native" and any(group != {"frozen": True} for group in map(_find_effect, self.groups)):
            raise UserError(
                "optimizer.groups: with optimizer.semantics=native groups can only be frozen, since Keras's optimizers "
                "have no groups; set optimizer.semantics to aligned or keras, or remove the groups"
            )

    def with_momentum(self, momentum: Any) -> Self:  # noqa: ANN401 (the frameworks share no type of tensors)
        """Return the settings with the momentum that a schedule chose: a number, or a tensor with one element."""
        assert self.momentum_key is not None
        return replace(self, **{self.momentum_key: momentum})

    @property
    def slots(self) -> tuple[str, ...]:
        """Return PyTorch's names of the slots, the arrays that the optimizer keeps for parameters."""
        raise NotImplementedError

    def list_slots(self, name: str, shape: Shape) -> dict[str, Shape]:
        """Return the shape of each slot of a parameter in PyTorch, by the slot's name."""
        return dict.fromkeys(self.slots, shape)

    def find_layout(self, name: str) -> KerasLayout | None:
        """Return the layout of a parameter in Keras if the update needs it and it differs from PyTorch's; else None."""
        return None

    def resolve(self, machine_epsilon: float) -> Self:
        """Return the settings after filling in the values that depend on the semantics and the weights' precision."""
        return self

    @property
    def has_fused_operation(self) -> bool:
        """Return whether TensorFlow has a fused operation for the update.

        Such an operation locks the variable, so that updates of several workers do not mix.
        """
        return False

    @property
    def initial_slot_value(self) -> float:
        """Return the value of all elements of the slots before the first update."""
        return 0.0


def _find_effect(group: object) -> object:
    """Return the values that a group sets, or the group itself if it is a preset such as no_decay_on_bias_and_norm."""
    return {name: value for name, value in group.items() if name != "match"} if isinstance(group, dict) else group
