"""Attributes and buffers of modules that a forward pass may change."""

from __future__ import annotations

from collections.abc import Callable

import torch

from common.recording.layer_attributes import LayerAttributes

IGNORED = {*vars(torch.nn.Module())} - {"_buffers", "_parameters"}  # dicts of tensors


def keep_attributes(model: torch.nn.Module) -> LayerAttributes:
    """Keep the plain attributes and the buffers of a model. A module whose variables the pass creates keeps its own."""
    modules = [module for module in model.modules() if not any(map(torch.nn.parameter.is_lazy, _list_tensors(module)))]
    return LayerAttributes(modules, IGNORED, torch.Tensor, _restore_tensor, _list_parts)


def _list_tensors(module: torch.nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def _list_parts(module: torch.nn.Module) -> list[object]:
    return [*module._modules.values(), *module._parameters.values()]


def _restore_tensor(tensor: torch.Tensor) -> Callable[[], None]:
    """Return a function that restores the values that a tensor has now.

    A forward pass changes no parameters, other than frozen ones, such as those of a momentum encoder.
    """
    if (isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad) or tensor.layout != torch.strided:
        return lambda: None
    values = tensor.detach().clone()

    def restore() -> None:
        with torch.no_grad():
            if not torch.equal(tensor, values):  # a copy would hinder the backward pass of an earlier graph
                tensor.copy_(values)

    return restore
