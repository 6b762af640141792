"""A small residual network."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Two convolutions, and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int, activation: str) -> None:
        super().__init__()
        self.activation = getattr(functional, activation)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.activation(self.norm1(self.conv1(x)))
        result: torch.Tensor = self.activation(self.norm2(self.conv2(y)) + self.shortcut(x))
        return result


class ResNet(nn.Module):
    """A model that maps images [n, channels, height, width] to logits [n, classes]."""

    def __init__(self, classes: int, width: int, activation: str) -> None:
        super().__init__()
        self.activation = getattr(functional, activation)
        self.conv = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(Block(width, width, 1, activation), Block(width, 2 * width, 2, activation))
        self.head = nn.Linear(2 * width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.activation(self.norm(self.conv(images))))
        logits: torch.Tensor = self.head(x.mean((2, 3)))
        return logits


def build(classes: int = 10, width: int = 8, activation: str = "relu") -> nn.Module:
    """Build the model. activation: a function of torch.nn.functional, such as relu or silu."""
    return ResNet(classes, width, activation)
