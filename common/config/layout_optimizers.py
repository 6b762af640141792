"""Settings of the optimizers that need whole parameters, and whose updates depend on the order of their axes."""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Self

from common.config.keras_layout import KerasLayout, Shape, parse_layout
from common.config.keys import CURVE, key
from common.config.optimizer_settings import OptimizerSettings
from common.errors import UserError

# Muon's choices of a factor for the learning rate of a matrix, and the semantics that have each
RATE_ADJUSTMENTS = {"original": ("aligned",), "match_rms_adamw": ("aligned", "keras"), "none": ("keras",)}


@dataclass(frozen=True)
class LayoutSettings(OptimizerSettings):
    """An optimizer whose update depends on the order of a parameter's axes.

    With `semantics: keras`, `keras_layouts` has the steps from PyTorch's layout to Keras's for each parameter whose
    layout differs. The preparation of a run fills it in. The slots then have Keras's layout, on both sides.
    """

    uses_layout = True

    keras_layouts: dict[str, str] = key(CURVE)

    def find_layout(self, name: str) -> KerasLayout | None:
        """Return the layout of a parameter in Keras; None if the layout, or the update to compute, is PyTorch's."""
        return parse_layout(self.keras_layouts[name]) if name in self.keras_layouts else None

    def list_slots(self, name: str, shape: Shape) -> dict[str, Shape]:
        """Return the shape of each slot of a parameter, in the layout in which the update is computed."""
        layout = self.find_layout(name)
        return self._list_slots(name, layout.find_shape(shape) if layout else shape)

    def _list_slots(self, name: str, shape: Shape) -> dict[str, Shape]:
        """Return the shape of each slot. shape: the shape of the parameter in that layout."""
        raise NotImplementedError


@dataclass(frozen=True)
class AdafactorSettings(LayoutSettings):
    """Adafactor. For a parameter of two or more axes it keeps mean squares over the rows and columns of the last two.

    `epsilon`, PyTorch's `eps[0]`, limits the mean squares from below; null means the machine epsilon of the weights.
    With `semantics: keras` it is added to the squares, and null means Keras's 1e-30.
    `epsilon2`, `eps[1]`, limits the root mean square of a parameter, which is a factor of its learning rate.
    """

    slots = ("row_var", "col_var", "variance")

    epsilon2: float = key(CURVE, at_least=0)
    beta2_decay: float = key(CURVE, at_most=0)
    clip_threshold: float = key(CURVE, at_least=1)

    def _list_slots(self, name: str, shape: Shape) -> dict[str, Shape]:
        """Return the slots of a parameter. Vectors and scalars have one mean square per element."""
        if len(shape) < 2:
            return {"variance": shape}
        return {"row_var": (*shape[:-1], 1), "col_var": (*shape[:-2], 1, shape[-1])}

    def resolve(self, machine_epsilon: float) -> Self:
        """Return the settings with a value of `epsilon`."""
        default = 1e-30 if self.semantics == "keras" else machine_epsilon
        return self if self.epsilon is not None else replace(self, epsilon=default)


@dataclass(frozen=True)
class MuonSettings(LayoutSettings):
    """Muon, which makes the momentum of a matrix orthogonal, and AdamW for all other parameters.

    `adamw_match` holds shell patterns of names, separated by "|", of matrices that AdamW updates too. `ns_steps` is the
    number of Newton-Schulz iterations. `rate_adjustment` chooses the factor of a matrix's learning rate; null means
    `original` or, with `semantics: keras`, `match_rms_adamw`.
    """

    needs = ("momentum", "beta1", "beta2", "epsilon")
    slots = ("momentum_buffer", "exp_avg", "exp_avg_sq")

    nesterov: bool = key(CURVE)
    ns_steps: int = key(CURVE, at_least=1, below=100)
    ns_epsilon: float = key(CURVE, at_least=0)
    rate_adjustment: str | None = key(CURVE, choices=(*RATE_ADJUSTMENTS,), null="for the default of the semantics")
    adamw_match: str = key(CURVE)

    def check(self) -> None:
        """Raise UserError if the framework whose update is computed has no such adjustment of the rate."""
        super().check()
        semantics = RATE_ADJUSTMENTS.get(self.rate_adjustment or "", (self.semantics,))
        if self.semantics != "native" and self.semantics not in semantics:
            others = [name for name, fitting in RATE_ADJUSTMENTS.items() if self.semantics in fitting]
            raise UserError(
                f"optimizer.rate_adjustment={self.rate_adjustment}: not with optimizer.semantics={self.semantics}; "
                f"choose {' or '.join(others)}"
            )

    @property
    def resolved_rate_adjustment(self) -> str:
        """Return `rate_adjustment`, or the default of the semantics if it is null."""
        return self.rate_adjustment or ("match_rms_adamw" if self.semantics == "keras" else "original")

    def _list_slots(self, name: str, shape: Shape) -> dict[str, Shape]:
        """Return the slots of a parameter: a momentum, or the two moments of AdamW."""
        is_matched = any(fnmatchcase(name, pattern.strip()) for pattern in self.adamw_match.split("|"))
        return dict.fromkeys(self.slots[1:] if len(shape) != 2 or is_matched else self.slots[:1], shape)
