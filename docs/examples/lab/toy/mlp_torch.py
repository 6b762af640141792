"""The perceptron in PyTorch. The spec in mlp.py fixes the names and shapes of its parameters."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import Dropout, Linear, Module

from common.models.initial_weights import InitialCheckpoint

from .mlp import get_parameter_shapes


class Mlp(Module):
    """A perceptron that takes `images` [n, height, width, channels] and returns logits [n, classes]."""

    def __init__(self, hf_config: Mapping[str, Any]) -> None:
        super().__init__()
        _, inputs = get_parameter_shapes(hf_config)["fc1.weight"]
        self.fc1 = Linear(inputs, hf_config["hidden_size"])
        self.dropout = Dropout(hf_config["dropout"])
        self.fc2 = Linear(hf_config["hidden_size"], len(hf_config["id2label"]))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.fc1(images.flatten(1).to(self.fc1.weight.dtype)))
        logits: torch.Tensor = self.fc2(self.dropout(x))
        return logits


def build(initial: InitialCheckpoint) -> Module:
    """Build the model with the initial weights."""
    model = Mlp(initial.hf_config)
    model.load_state_dict({name: torch.from_numpy(weight) for name, weight in initial.weights().items()})
    return model
