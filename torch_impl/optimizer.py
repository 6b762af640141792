"""The optimizer of a run, with the values of `optimizer.semantics`.

`aligned` is PyTorch's own optimizer with every value from the config, `keras` the update that Keras documents, and
`native` PyTorch's optimizer with PyTorch's defaults. A slot is an array that the optimizer keeps for each parameter,
such as Adam's first moment.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.nn import Parameter
from torch.profiler import record_function

from common.config.keras_layout import Shape
from common.config.layout_optimizers import AdafactorSettings, MuonSettings
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
from common.config.parameter_groups import GroupSettings
from common.config.schema import AVERAGE, Config
from common.training.optimizer_rules import build_rule, compute_nadam_product
from common.training.schedule import compute_learning_rate, find_update_settings
from common.training.state import Position
from common.training.weight_average import compute_share
from torch_impl.clipping import clip_gradients
from torch_impl.models.parameter_groups import find_groups
from torch_impl.native_muon import NativeMuon
from torch_impl.rule_optimizer import RuleOptimizer
from torch_impl.step import collect_gradients
from torch_impl.weight_average import WeightAverage

Groups: TypeAlias = list[dict[str, Any]]  # parameter groups in the form that torch.optim takes
# Optimizers of PyTorch that optimizer.semantics=native builds without any argument besides the parameters
NATIVE: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "adafactor": torch.optim.Adafactor,
}


class Optimizer:
    """An optimizer that updates parameters from their gradients, `parameter.grad`."""

    def __init__(self, config: Config, named_parameters: Mapping[str, Parameter]) -> None:
        """Prepare to update parameters by name."""
        self.config = config
        self.plateau_factor = 1.0  # factor by which schedule=plateau has lowered the learning rate
        self._groups: dict[GroupSettings, list[str]] = {}  # names of the parameters of each group
        for name, group in find_groups(named_parameters, config).items():
            self._groups.setdefault(group, []).append(name)
        self.names = [name for names in self._groups.values() for name in names]
        self.parameters = [named_parameters[name] for name in self.names]
        # Dense buffers, zero between updates, for sparse gradients: the fused optimizers accept only dense ones.
        self._zeros: dict[Parameter, torch.Tensor] = {}
        groups = [
            {
                "params": [named_parameters[name] for name in names],
                "names": names,
                "lr": 0.0,
                "weight_decay": group.weight_decay,
            }
            for group, names in self._groups.items()
        ]
        self._optimizer = self._build(groups)
        name_of = dict(zip(self.parameters, self.names, strict=True))
        held_parameters = [parameter for group in self._slot_holder.param_groups for parameter in group["params"]]
        self.held = {name_of[parameter]: parameter for parameter in held_parameters}  # those with slots on this rank
        self.gradient_bytes = 0  # size of the gradients of the last update
        self._average = WeightAverage(config, list(self.held.values()))

    def _build(self, groups: Groups) -> torch.optim.Optimizer:
        """Build the optimizer of PyTorch for the value of `optimizer.semantics`."""
        build = {"aligned": _build_aligned, "keras": RuleOptimizer, "native": _build_native}
        return build[self.config.optimizer.semantics](groups, self.config)

    @property
    def _slot_holder(self) -> torch.optim.Optimizer:
        """Return the optimizer of PyTorch that has the slots. A subclass may wrap it in another optimizer."""
        return self._optimizer

    @record_function("update")
    def update(self, step: int, norm: torch.Tensor | None = None) -> torch.Tensor:
        """Apply one update, clear the gradients, and return the norm of the gradient before clipping.

        Args:
            step: The number of the update, from 1.
            norm: The norm of the whole model's gradient, if this optimizer has only some of the parameters.
        """
        collected = dict(zip(self.parameters, collect_gradients(self.parameters), strict=True))
        sparse = {parameter: gradient.coalesce() for parameter, gradient in collected.items() if gradient.is_sparse}
        dense = [gradient for gradient in collected.values() if not gradient.is_sparse]
        gradients = [*dense, *(gradient.values() for gradient in sparse.values())]
        self.gradient_bytes = sum(gradient.nbytes for gradient in gradients)
        norms = self._compute_norms(gradients) if norm is None or self.config.optimizer.clip_norm is not None else []
        if norm is None:
            norm = torch.linalg.vector_norm(torch.stack(norms))
        clip_gradients(self.config, gradients, norm, norms)
        rate = compute_learning_rate(self.config, step) * self.plateau_factor
        for torch_group, group in zip(self._optimizer.param_groups, self._groups, strict=True):
            torch_group["lr"] = rate * group.learning_rate_scale
        if self.config.schedule.sets_momentum:
            self._set_momentum(find_update_settings(self.config, step))
        for parameter, gradient in sparse.items():
            if parameter not in self._zeros:
                self._zeros[parameter] = torch.zeros_like(parameter)
            rows = gradient.indices()[0]
            parameter.grad = self._zeros[parameter].index_copy_(0, rows, gradient.values())
        self._optimizer.step()
        self._optimizer.zero_grad()
        if AVERAGE in self.config.slots:
            self._average.update(compute_share(self.config.ema, self.config.swa, step))
        for parameter, gradient in sparse.items():
            self._zeros[parameter].index_fill_(0, gradient.indices()[0], 0.0)
        return norm

    def _set_momentum(self, settings: OptimizerSettings) -> None:
        """Set the momentum that the schedule has chosen for an update."""
        if isinstance(self._slot_holder, RuleOptimizer):
            self._slot_holder.rule = build_rule(settings)
            return
        for group in self._optimizer.param_groups:
            if settings.momentum_key == "momentum":
                group["momentum"] = settings.momentum
            else:
                group["betas"] = (settings.beta1, settings.beta2)

    def _compute_norms(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the norm of each gradient."""
        return list(torch._foreach_norm(gradients))

    def swap_averages(self) -> None:
        """Exchange the weights and their averages (ema.* or swa.*)."""
        self._average.swap()

    def slots(self) -> dict[str, np.ndarray]:
        """Return the slots, such as moments, as `<slot>.<parameter>`; before the first update their initial values."""
        return {f"{slot}.{name}": tensor.cpu().numpy() for slot, name, tensor in self.slot_tensors()}

    def slot_tensors(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Yield the slots that this process has: the name of the slot, the name of the parameter, and the tensor."""
        for name, parameter in self.held.items():
            for slot, shape in self.config.optimizer.list_slots(name, tuple(parameter.shape)).items():
                yield slot, name, self._get_slot(slot, parameter, shape)
        for name, average in zip(self.held, self._average.averages, strict=False):  # the run may keep no averages
            yield AVERAGE, name, average

    def _get_slot(self, slot: str, parameter: Parameter, shape: Shape) -> torch.Tensor:
        value = self._slot_holder.state[parameter].get(slot)
        return parameter.new_full(shape, self.config.optimizer.initial_slot_value) if value is None else value

    def load(self, slots: Mapping[str, np.ndarray], position: Position) -> None:
        """Load the slots of a checkpoint. position: the progress of the run in the checkpoint."""
        self.plateau_factor = position.plateau_factor
        for name, average in zip(self.held, self._average.averages, strict=False):
            average.copy_(torch.from_numpy(slots[f"{AVERAGE}.{name}"]))
        if position.step == 0:
            return  # PyTorch creates the slots at the first update, and SGD's momentum starts with the gradient
        scalars = {"step": torch.tensor(float(position.step))}
        if isinstance(self.config.optimizer, NadamSettings):
            scalars["mu_product"] = torch.tensor(compute_nadam_product(self.config.optimizer, position.step))
        state = {
            index: {
                **{key: scalar.clone() for key, scalar in scalars.items()},
                **{
                    slot: torch.from_numpy(slots[f"{slot}.{name}"])
                    for slot in self.config.optimizer.list_slots(name, tuple(parameter.shape))
                },
            }
            for index, (name, parameter) in enumerate(self.held.items())
        }
        groups = self._slot_holder.state_dict()["param_groups"]
        self._slot_holder.load_state_dict({"state": state, "param_groups": groups})


def _build_aligned(groups: Groups, config: Config) -> torch.optim.Optimizer:
    """Build PyTorch's optimizer with every value from the config."""
    settings = config.optimizer
    betas, epsilon = (settings.beta1 or 0.0, settings.beta2 or 0.0), settings.epsilon or 0.0  # null if not used
    match settings:
        case SgdSettings(momentum=momentum, dampening=dampening, nesterov=nesterov):
            return torch.optim.SGD(groups, momentum=momentum or 0.0, dampening=dampening, nesterov=nesterov, fused=True)
        case AdamSettings(kind=kind, amsgrad=amsgrad):
            build = torch.optim.AdamW if kind == "adamw" else torch.optim.Adam
            return build(groups, betas=betas, eps=epsilon, amsgrad=amsgrad, fused=True)
        case RmspropSettings(rho=rho, momentum=momentum, centered=centered):
            return torch.optim.RMSprop(groups, alpha=rho, eps=epsilon, momentum=momentum or 0.0, centered=centered)
        case AdagradSettings(initial_slot_value=initial):
            return torch.optim.Adagrad(groups, initial_accumulator_value=initial, eps=epsilon)
        case AdadeltaSettings(rho=rho):
            return torch.optim.Adadelta(groups, rho=rho, eps=epsilon)
        case AdamaxSettings():
            return torch.optim.Adamax(groups, betas=betas, eps=epsilon)
        case AdafactorSettings(epsilon2=epsilon2, beta2_decay=decay, clip_threshold=threshold):
            return torch.optim.Adafactor(groups, beta2_decay=decay, eps=(epsilon, epsilon2), d=threshold)
    # PyTorch's own NAdam keeps the product of its momentums in float32, and its Muon computes in bfloat16.
    return RuleOptimizer(groups, config)


def _build_native(groups: Groups, config: Config) -> torch.optim.Optimizer:
    """Build PyTorch's optimizer with PyTorch's defaults for all values except those that choose an algorithm."""
    settings = config.optimizer
    parameters = [{"params": group["params"]} for group in groups]  # without the values from the config
    match settings:
        case SgdSettings(momentum=momentum, nesterov=nesterov):
            return torch.optim.SGD(parameters, momentum=momentum or 0.0, nesterov=nesterov)
        case RmspropSettings(momentum=momentum, centered=centered):
            return torch.optim.RMSprop(parameters, momentum=momentum or 0.0, centered=centered)
        case AdamSettings(kind=kind, amsgrad=amsgrad):
            build = torch.optim.AdamW if kind == "adamw" else torch.optim.Adam
            return build(parameters, amsgrad=amsgrad)
        case MuonSettings():
            return NativeMuon(groups, config)
    return NATIVE[settings.kind](parameters)
