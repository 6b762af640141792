"""Settings of the kinds of optimizers.

Each field is a key of the config, such as optimizer.weight_decay. `key(CURVE, ...)` declares its limits, and that it
decides the loss curve. The files in conf/optimizer have the default values and explain the keys.

A new kind needs a schema here, a YAML file in conf/optimizer, a rule in common/training/optimizer_rules.py, a line in
`optimizer.py` of each side, and a case in common/diagnose/drift.py unless the rule divides by the root of exp_avg_sq.
"""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Self

from common.config.keys import CURVE, key
from common.config.parameter_groups import check_groups
from common.errors import UserError

CLIPPING = ("max_grad_norm", "clip_norm", "clip_value")

Shape = tuple[int, ...]  # shape of a parameter or a slot in PyTorch


@dataclass(frozen=True)
class OptimizerSettings:
    """Settings that every kind of optimizer has.

    `momentum`, `beta1`, `beta2` and `epsilon` are null for kinds that do not use them. With `semantics: aligned` both
    sides compute the update that PyTorch documents, with `keras` the update that Keras documents, and with `native`
    each framework computes its own.
    """

    needs: ClassVar[tuple[str, ...]] = ()  # the keys that must have a value
    momentum_key: ClassVar[str | None] = None  # the key that a schedule sets to cycle the momentum; None: it cannot
    uses_layout: ClassVar[bool] = False  # whether an update needs a whole parameter in PyTorch's layout

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
        if self.uses_layout and self.semantics != "aligned":
            raise UserError(
                f"optimizer.semantics={self.semantics}: the update of {self.kind} depends on the order of the axes, "
                "which differs in Keras; set optimizer.semantics to aligned"
            )
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

    def resolve(self, machine_epsilon: float) -> Self:
        """Return the settings after filling in the values that depend on the precision of the weights."""
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


@dataclass(frozen=True)
class SgdSettings(OptimizerSettings):
    """Stochastic gradient descent. `dampening` is the share of the gradient that the momentum leaves out."""

    momentum_key = "momentum"

    nesterov: bool = key(CURVE)
    dampening: float = key(CURVE, at_least=0, at_most=1)

    def check(self) -> None:
        """Raise UserError if the momentum does not fit the other values."""
        super().check()
        if self.nesterov and (not self.momentum or self.dampening):
            raise UserError("optimizer.nesterov=true: needs optimizer.momentum above 0 and optimizer.dampening=0")
        if self.dampening and self.semantics != "aligned":
            raise UserError(
                f"optimizer.dampening={self.dampening:g}: Keras's SGD has none; set it to 0, or optimizer.semantics to "
                "aligned"
            )

    @property
    def slots(self) -> tuple[str, ...]:
        """Return PyTorch's names of the slots."""
        return ("momentum_buffer",) if self.momentum else ()

    @property
    def has_fused_operation(self) -> bool:
        """Return whether TensorFlow has a fused operation for the update."""
        return self.semantics == "aligned" and not self.nesterov and not self.dampening


@dataclass(frozen=True)
class AdamSettings(OptimizerSettings):
    """Adam, and AdamW, whose weight decay is not part of the gradient. `amsgrad` keeps the largest second moment."""

    needs = ("beta1", "beta2", "epsilon")
    momentum_key = "beta1"

    amsgrad: bool = key(CURVE)

    @property
    def slots(self) -> tuple[str, ...]:
        """Return PyTorch's names of the slots."""
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if self.amsgrad else ("exp_avg", "exp_avg_sq")

    @property
    def has_fused_operation(self) -> bool:
        """Return whether TensorFlow has a fused operation for the update."""
        return self.semantics == "aligned" and not self.amsgrad


@dataclass(frozen=True)
class RmspropSettings(OptimizerSettings):
    """RMSprop. `rho` is the decay rate of the mean square; `centered` subtracts the square of the mean gradient."""

    needs = ("epsilon",)
    momentum_key = "momentum"

    rho: float = key(CURVE, at_least=0, below=1)
    centered: bool = key(CURVE)

    @property
    def slots(self) -> tuple[str, ...]:
        """Return PyTorch's names of the slots."""
        return (
            "square_avg",
            *(("grad_avg",) if self.centered else ()),
            *(("momentum_buffer",) if self.momentum else ()),
        )


@dataclass(frozen=True)
class AdagradSettings(OptimizerSettings):
    """Adagrad. `initial_accumulator: null` means PyTorch's 0 or, with `semantics: keras`, Keras's 0.1."""

    needs = ("epsilon",)
    slots = ("sum",)

    initial_accumulator: float | None = key(CURVE, at_least=0)

    @property
    def initial_slot_value(self) -> float:
        """Return the value of the sums of squares before the first update."""
        if self.initial_accumulator is None:
            return 0.1 if self.semantics == "keras" else 0.0
        return self.initial_accumulator


@dataclass(frozen=True)
class AdadeltaSettings(OptimizerSettings):
    """Adadelta. `rho` is the decay rate of both mean squares."""

    needs = ("epsilon",)
    slots = ("square_avg", "acc_delta")

    rho: float = key(CURVE, at_least=0, below=1)


@dataclass(frozen=True)
class AdamaxSettings(OptimizerSettings):
    """Adamax: Adam with the largest gradient instead of the second moment."""

    needs = ("beta1", "beta2", "epsilon")
    slots = ("exp_avg", "exp_inf")
    momentum_key = "beta1"


@dataclass(frozen=True)
class NadamSettings(OptimizerSettings):
    """Adam with Nesterov momentum. `momentum_decay: null` means PyTorch's 0.004 or, with `semantics: keras`, 1."""

    needs = ("beta1", "beta2", "epsilon")
    slots = ("exp_avg", "exp_avg_sq")

    momentum_decay: float | None = key(CURVE, at_least=0)

    @property
    def resolved_momentum_decay(self) -> float:
        """Return `momentum_decay`, or the default of the semantics if it is null."""
        if self.momentum_decay is None:
            return 1.0 if self.semantics == "keras" else 0.004
        return self.momentum_decay


@dataclass(frozen=True)
class AdafactorSettings(OptimizerSettings):
    """Adafactor. For a parameter of two or more axes it keeps mean squares over the rows and columns of the last two.

    `epsilon`, PyTorch's `eps[0]`, limits the mean squares from below; null means the machine epsilon of the weights.
    `epsilon2`, `eps[1]`, limits the root mean square of a parameter, which is a factor of its learning rate.
    """

    slots = ("row_var", "col_var", "variance")
    uses_layout = True

    epsilon2: float = key(CURVE, at_least=0)
    beta2_decay: float = key(CURVE, at_most=0)
    clip_threshold: float = key(CURVE, at_least=1)

    def list_slots(self, name: str, shape: Shape) -> dict[str, Shape]:
        """Return the slots of a parameter. Vectors and scalars have one mean square per element."""
        if len(shape) < 2:
            return {"variance": shape}
        return {"row_var": (*shape[:-1], 1), "col_var": (*shape[:-2], 1, shape[-1])}

    def resolve(self, machine_epsilon: float) -> Self:
        """Return the settings with a value of `epsilon`."""
        return self if self.epsilon is not None else replace(self, epsilon=machine_epsilon)


@dataclass(frozen=True)
class MuonSettings(OptimizerSettings):
    """Muon, which makes the momentum of a matrix orthogonal, and AdamW for all other parameters.

    `adamw_match` holds shell patterns of names, separated by "|", of matrices that AdamW updates too. `ns_steps` is the
    number of Newton-Schulz iterations. `rate_adjustment` chooses the factor of a matrix's learning rate.
    """

    needs = ("momentum", "beta1", "beta2", "epsilon")
    slots = ("momentum_buffer", "exp_avg", "exp_avg_sq")
    uses_layout = True

    nesterov: bool = key(CURVE)
    ns_steps: int = key(CURVE, at_least=1, below=100)
    ns_epsilon: float = key(CURVE, at_least=0)
    rate_adjustment: str = key(CURVE, choices=("original", "match_rms_adamw"))
    adamw_match: str = key(CURVE)

    def list_slots(self, name: str, shape: Shape) -> dict[str, Shape]:
        """Return the slots of a parameter: a momentum, or the two moments of AdamW."""
        is_matched = any(fnmatchcase(name, pattern.strip()) for pattern in self.adamw_match.split("|"))
        return dict.fromkeys(self.slots[1:] if len(shape) != 2 or is_matched else self.slots[:1], shape)


OPTIMIZERS: dict[str, type[OptimizerSettings]] = {
    "adamw": AdamSettings,
    "adam": AdamSettings,
    "sgd": SgdSettings,
    "rmsprop": RmspropSettings,
    "adagrad": AdagradSettings,
    "adadelta": AdadeltaSettings,
    "adamax": AdamaxSettings,
    "nadam": NadamSettings,
    "adafactor": AdafactorSettings,
    "muon": MuonSettings,
}
