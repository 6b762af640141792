"""Checks of the arguments of a recorder."""

from __future__ import annotations

import torch

from torch_impl.record.model_facts import is_sharded
from torch_impl.record.optimizer_facts import unwrap_optimizer


def check_arguments(model: object, optimizer: object, steps: object) -> torch.optim.Optimizer:
    """Return the optimizer of PyTorch within the optimizer of a script. Raise ValueError if an argument is wrong."""
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"model: must be a torch.nn.Module, not {type(model).__name__}; pass the model that you train")
    inner = unwrap_optimizer(optimizer)
    if inner is None:
        raise ValueError(
            f"optimizer: must be a torch.optim.Optimizer, not {type(optimizer).__name__}; pass the model's optimizer"
        )
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps={steps}: must be a number of optimizer steps, at least 1")
    parameters = {id(parameter) for parameter in model.parameters()}
    updated = {id(parameter) for group in inner.param_groups for parameter in group["params"]}
    if not parameters & updated and not is_sharded(model):
        raise ValueError(
            "optimizer: updates none of the model's parameters; create it from model.parameters() of this model, after "
            "the model is on its device"
        )
    return inner
