"""The optimizer of a run, with the values of `optimizer.semantics`.

`aligned` takes every value from the config, as TensorFlow's side does. `native` uses PyTorch's defaults. A slot is an
array that the optimizer keeps for each parameter, such as Adam's first moment.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch.nn import Parameter
from torch.nn.utils import get_total_norm
from torch.profiler import record_function

from common.config.schema import Config
from common.training.schedule import compute_learning_rate
from common.training.state import Position
from torch_impl.step import collect_gradients


class Optimizer:
    """An optimizer that updates parameters from their gradients, `parameter.grad`."""

    def __init__(self, config: Config, named_parameters: Mapping[str, Parameter]) -> None:
        """Prepare to update parameters by name."""
        self.config = config
        self.names, self.parameters = list(named_parameters), list(named_parameters.values())
        self.plateau_factor = 1.0  # by which schedule=plateau has lowered the learning rate
        # Dense buffers, zero between updates, for sparse gradients: the fused optimizers accept only dense ones.
        self._zeros: dict[Parameter, torch.Tensor] = {}
        self._optimizer = (
            _build_native(config, self.parameters)
            if config.optimizer.semantics == "native"
            else _build_aligned(config, self.parameters)
        )

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
        if norm is None:
            norm = get_total_norm(gradients)
        if self.config.optimizer.max_grad_norm is not None:  # the formula of torch.nn.utils.clip_grads_with_norm_
            torch._foreach_mul_(gradients, (self.config.optimizer.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        for group in self._optimizer.param_groups:
            group["lr"] = compute_learning_rate(self.config, step) * self.plateau_factor
        for parameter, gradient in sparse.items():
            if parameter not in self._zeros:
                self._zeros[parameter] = torch.zeros_like(parameter)
            rows = gradient.indices()[0]
            parameter.grad = self._zeros[parameter].index_copy_(0, rows, gradient.values())
        self._optimizer.step()
        self._optimizer.zero_grad()
        for parameter, gradient in sparse.items():
            self._zeros[parameter].index_fill_(0, gradient.indices()[0], 0.0)
        return norm

    def slots(self) -> dict[str, np.ndarray]:
        """Return the slots, such as moments, as `<slot>.<parameter>`; they are zero before the first update."""
        return {
            f"{slot}.{name}": self._optimizer.state[parameter].get(slot, torch.zeros_like(parameter)).cpu().numpy()
            for slot in self.config.optimizer.slots
            for name, parameter in zip(self.names, self.parameters, strict=True)
        }

    def load(self, slots: dict[str, np.ndarray], position: Position) -> None:
        """Load the slots of a checkpoint. position: the progress of the run in the checkpoint."""
        self.plateau_factor = position.plateau_factor
        state = {
            index: {
                "step": torch.tensor(float(position.step)),
                **{slot: torch.from_numpy(slots[f"{slot}.{name}"]) for slot in self.config.optimizer.slots},
            }
            for index, name in enumerate(self.names)
        }
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})


def _build_aligned(config: Config, parameters: list[Parameter]) -> torch.optim.Optimizer:
    """Build PyTorch's optimizer with every value from the config."""
    settings = config.optimizer
    if settings.kind == "sgd":
        return torch.optim.SGD(
            parameters, settings.learning_rate, settings.momentum or 0.0, weight_decay=settings.weight_decay, fused=True
        )
    kind = torch.optim.AdamW if settings.kind == "adamw" else torch.optim.Adam
    assert settings.beta1 is not None and settings.beta2 is not None and settings.epsilon is not None
    return kind(
        parameters,
        settings.learning_rate,
        (settings.beta1, settings.beta2),
        settings.epsilon,
        settings.weight_decay,
        fused=True,
    )


def _build_native(config: Config, parameters: list[Parameter]) -> torch.optim.Optimizer:
    """Build PyTorch's optimizer with PyTorch's defaults for all values but the learning rate and the momentum."""
    settings = config.optimizer
    if settings.kind == "sgd":
        return torch.optim.SGD(parameters, settings.learning_rate, settings.momentum or 0.0)
    kind = torch.optim.AdamW if settings.kind == "adamw" else torch.optim.Adam
    return kind(parameters, settings.learning_rate)
