"""Models with the initial weights, and their parameters by name."""

from importlib import import_module

import numpy as np
import torch
from torch.nn import Module

from common.config.schema import Config
from common.models.initial_weights import InitialCheckpoint


def build_model(config: Config, initial: InitialCheckpoint) -> Module:
    """The model with the initial weights, float64 for precision=float64, else float32 (bfloat16 is for computing)."""
    torch.manual_seed(config.train.seed)  # of dropout
    kind = import_module(config.model.torch)  # alone: transformers takes seconds to import
    model: Module = kind.build(initial)
    return model.to(torch.float64 if config.train.precision == "float64" else torch.float32)


def load_parameters(model: Module, parameters: dict[str, np.ndarray]) -> None:
    """Set the parameters by their Hugging Face names."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(parameters[name]))


def parameters_by_name(model: Module) -> dict[str, np.ndarray]:
    """The parameters under their Hugging Face names."""
    return {name: parameter.detach().cpu().numpy() for name, parameter in model.named_parameters()}
