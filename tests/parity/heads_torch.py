"""A model with four outputs in PyTorch, one of which has no loss. heads_keras.py is the same model in Keras."""

import torch
from torch import nn
from typing_extensions import override


class Heads(nn.Module):
    """Convolutional features with a class for each pixel, and numbers of each image."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(2, 5, 3, padding=1)
        self.mask, self.group, self.age, self.auxiliary = nn.Conv2d(5, 2, 1), *(nn.Linear(5, n) for n in (3, 1, 4))

    @override
    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        features = torch.tanh(self.body(images))
        pooled = features.mean((2, 3))
        outputs = {name: getattr(self, name)(pooled) for name in ("group", "age", "auxiliary")}
        return {"mask": self.mask(features), **outputs}


def build() -> nn.Module:
    """Return the model with random weights."""
    return Heads()
