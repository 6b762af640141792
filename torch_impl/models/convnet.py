"""The convolutional network of the PyTorch tutorial "Writing distributed applications"."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch.nn import Conv2d, Dropout, Dropout2d, Linear, Module
from torch.nn.functional import max_pool2d, relu
from typing_extensions import override

from common.models.convnet import get_parameter_shapes
from common.models.initial_weights import InitialCheckpoint
from torch_impl.aligned_layers import use_dropout_keys
from torch_impl.models.weights import build_with_weights


class ConvNet(Module):
    """A network that takes `images` [n, height, width, channels] and returns logits [n, classes]."""

    def __init__(self, hf_config: Mapping[str, Any]) -> None:
        """Create the layers. hf_config: the config.json of the initial checkpoint."""
        super().__init__()
        shapes = get_parameter_shapes(hf_config)
        first_filters, channels, kernel_size, _ = shapes["conv1.weight"]
        second_filters, hidden = shapes["conv2.weight"][0], hf_config["hidden_size"]
        self.conv1 = Conv2d(channels, first_filters, kernel_size, padding="same")
        self.conv2 = Conv2d(first_filters, second_filters, kernel_size, padding="same")
        self.channel_dropout = Dropout2d(hf_config["dropout"])
        self.fc1 = Linear(shapes["fc1.weight"][1], hidden)
        self.dropout = Dropout(hf_config["dropout"])
        self.fc2 = Linear(hidden, len(hf_config["id2label"]))

    @override
    def forward(self, images: torch.Tensor, dropout_keys: torch.Tensor | None = None) -> torch.Tensor:
        use_dropout_keys(self, dropout_keys)
        # DDP requires contiguous gradients. A clone has contiguous strides even with one channel.
        x = images.permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format)
        x = relu(max_pool2d(self.conv1(x.to(self.conv1.weight.dtype)), 2))
        x = relu(max_pool2d(self.channel_dropout(self.conv2(x)), 2))
        x = relu(self.fc1(x.flatten(1)))
        logits: torch.Tensor = self.fc2(self.dropout(x))
        return logits


def build(initial: InitialCheckpoint) -> Module:
    """Build the model with the initial weights."""
    return build_with_weights(initial, partial(ConvNet, initial.hf_config))
