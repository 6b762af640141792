"""The weights of a model by their names in PyTorch's model.

Weights are the parameters, the moving statistics of BatchNorm, and the other buffers that forward passes change.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch
from torch.nn import Module, Parameter
from torch.utils import swap_tensors

from common.models.initial_weights import InitialCheckpoint
from common.models.weight_files import check_weights
from torch_impl.batch_norm import find_moving_statistics
from torch_impl.changing_buffers import find_changing_buffers

AnyModel = TypeVar("AnyModel", bound=Module)


def build_with_weights(initial: InitialCheckpoint, build: Callable[[], AnyModel]) -> AnyModel:
    """Build a model with the initial weights, in the memory of one copy of the weights and one more tensor.

    The parameters of a deferred checkpoint are on the meta device, which uses no memory. Tied parameters stay tied,
    because every parameter remains the same object.
    """
    with _create_on_meta_device():
        model = build()
    if not initial.is_deferred:
        for parameter in model.parameters():
            if parameter.is_meta:
                _replace_content(parameter, torch.empty_like(parameter, device="cpu"))
        load_weights(model, initial.weights())
    return model


@contextmanager
def _create_on_meta_device() -> Iterator[None]:
    """Make the modules that the body builds create their parameters on the meta device.

    Buffers get their values, which a model computes when it is built.
    """
    register = Module.register_parameter

    def register_on_meta(module: Module, name: str, parameter: Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            _replace_content(parameter, parameter.detach().to("meta"))
        register(module, name, parameter)

    Module.register_parameter = register_on_meta  # type: ignore[assignment]
    try:
        yield
    finally:
        Module.register_parameter = register  # type: ignore[method-assign]


def _replace_content(parameter: Parameter, tensor: torch.Tensor) -> None:
    """Let a parameter have the memory and the device of a tensor. Other references to the parameter remain valid."""
    swap_tensors(parameter, Parameter(tensor, parameter.requires_grad))


def load_weights(model: Module, weights: Mapping[str, np.ndarray]) -> None:
    """Set the weights of a model. Raise UserError if one is missing."""
    tensors = _find_weights(model)
    check_weights(weights, tensors)
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(torch.from_numpy(weights[name]))


def read_weights(model: Module) -> dict[str, np.ndarray]:
    """Return the weights of a model by name. On the CPU the arrays share memory with the model."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in _find_weights(model).items()}


def _find_weights(model: Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **find_moving_statistics(model), **find_changing_buffers(model)}
