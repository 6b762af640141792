"""Settings of the kinds of optimizers.

A new kind needs a schema here, a YAML file in conf/optimizer, a rule in common/training/optimizer_rules.py, a line in
`optimizer.py` of each side, and a case in common/diagnose/drift.py unless the rule divides by the root of exp_avg_sq.
"""

from dataclasses import dataclass

from common.config.keys import CURVE, key
from common.config.layout_optimizers import AdafactorSettings, MuonSettings
from common.config.optimizer_settings import OptimizerSettings
from common.errors import UserError


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
