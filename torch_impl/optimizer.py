"""The update: `aligned` is torch's arithmetic with every value from the config, `native` is torch with its defaults."""

import torch
from torch.nn import Module
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from common.config import Config
from common.schedule import learning_rate


class Optimizer:
    """Updates a model's parameters from their gradients."""

    def __init__(self, config: Config, model: Module) -> None:
        self.config = config
        self.parameters = list(model.parameters())
        self._optimizer = (
            _native(config, self.parameters)
            if config.optimizer.semantics == "native"
            else _aligned(config, self.parameters)
        )

    def update(self, step: int, norm: torch.Tensor | None = None) -> torch.Tensor:
        """Apply update `step` (from 1) and clear the gradients. Returns the norm of the gradient before clipping.

        norm: where these are not all of the model's parameters.
        """
        if norm is None:
            norm = get_total_norm([parameter.grad for parameter in self.parameters if parameter.grad is not None])
        if self.config.optimizer.max_grad_norm is not None:
            clip_grads_with_norm_(self.parameters, self.config.optimizer.max_grad_norm, norm)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self.config, step)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return norm


def _aligned(config: Config, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    settings = config.optimizer
    if settings.name == "sgd":
        return torch.optim.SGD(
            parameters, settings.learning_rate, settings.momentum or 0.0, weight_decay=settings.weight_decay, fused=True
        )
    kind = torch.optim.AdamW if settings.name == "adamw" else torch.optim.Adam
    assert settings.beta1 is not None and settings.beta2 is not None and settings.epsilon is not None
    return kind(
        parameters,
        settings.learning_rate,
        (settings.beta1, settings.beta2),
        settings.epsilon,
        settings.weight_decay,
        fused=True,
    )


def _native(config: Config, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    settings = config.optimizer
    if settings.name == "sgd":
        return torch.optim.SGD(parameters, settings.learning_rate, settings.momentum or 0.0)
    kind = torch.optim.AdamW if settings.name == "adamw" else torch.optim.Adam
    return kind(parameters, settings.learning_rate)
