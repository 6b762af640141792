"""The weights of a model by their names in PyTorch's model.

Weights are the parameters, the moving statistics of BatchNorm, and the other buffers that forward passes change.
"""

import numpy as np
import torch
from torch.nn import Module

from common.models.weight_files import check_weights
from torch_impl.batch_norm import find_moving_statistics
from torch_impl.changing_buffers import find_changing_buffers


def load_weights(model: Module, weights: dict[str, np.ndarray]) -> None:
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
