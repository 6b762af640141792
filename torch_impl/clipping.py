"""Clipping of gradients before an update: by their common norm, by the norm of each gradient, or by their values."""

from collections.abc import Sequence

import torch

from common.config.schema import Config


def clip_gradients(
    config: Config, gradients: list[torch.Tensor], norm: torch.Tensor, norms: Sequence[torch.Tensor]
) -> None:
    """Clip gradients in place, one for each parameter.

    Args:
        config: The config of the run.
        gradients: The gradients, or this rank's parts of them.
        norm: The norm of the whole model's gradient.
        norms: The norm of each gradient; only clip_norm needs them.
    """
    settings = config.optimizer
    if settings.clip_value is not None:
        torch._foreach_clamp_min_(gradients, -settings.clip_value)
        torch._foreach_clamp_max_(gradients, settings.clip_value)
    elif settings.clip_norm is not None:
        torch._foreach_mul_(gradients, [_compute_factor(config, settings.clip_norm, x) for x in norms])
    elif settings.max_grad_norm is not None:
        torch._foreach_mul_(gradients, _compute_factor(config, settings.max_grad_norm, norm))


def _compute_factor(config: Config, max_norm: float, norm: torch.Tensor) -> torch.Tensor:
    """Return the factor that clips a gradient to a norm, as torch.nn.utils.clip_grads_with_norm_ or Keras does."""
    if config.optimizer.semantics == "keras":
        return max_norm / norm.clamp(min=max_norm)
    return (max_norm / (norm + 1e-6)).clamp(max=1.0)
