"""The parameters and buffers of a model that common.map describes."""

from collections.abc import Mapping

import numpy as np
import torch


def get_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters, tied ones once, and the buffers by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def read_state(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """Return copies of the parameters and buffers by name."""
    return {name: tensor.detach().numpy().copy() for name, tensor in get_state(model).items()}


@torch.no_grad()
def set_state(model: torch.nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Set some of the parameters and buffers."""
    tensors = get_state(model)
    for name, array in arrays.items():
        tensors[name].copy_(torch.from_numpy(array))
