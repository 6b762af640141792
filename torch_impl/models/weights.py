"""What a model has to save: its parameters and the moving statistics of BatchNorm, by their Hugging Face names."""

import numpy as np
import torch
from torch.nn import Module

from torch_impl.batch_norm import find_moving_statistics


def load_weights(model: Module, weights: dict[str, np.ndarray]) -> None:
    """Set them by name."""
    with torch.no_grad():
        for name, each in {**dict(model.named_parameters()), **find_moving_statistics(model)}.items():
            each.copy_(torch.from_numpy(weights[name]))


def read_weights(model: Module) -> dict[str, np.ndarray]:
    """Them by name."""
    named = {**dict(model.named_parameters()), **find_moving_statistics(model)}
    return {name: each.detach().cpu().numpy() for name, each in named.items()}
