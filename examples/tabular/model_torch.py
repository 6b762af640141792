"""A regression model of two inputs: numbers, and a category that is embedded."""

import torch
from torch import nn


class Tabular(nn.Module):
    """A model that maps numbers [n, 9] and sex [n], which is 0 or 1, to the progression of the disease [n, 1]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2, 4)
        self.hidden = nn.Linear(9 + 4, width)
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, 1)

    def forward(self, numbers: torch.Tensor, sex: torch.Tensor) -> torch.Tensor:
        x = torch.cat([numbers, self.embedding(sex)], dim=1)
        result: torch.Tensor = self.output(nn.functional.gelu(self.norm(self.hidden(x))))
        return result


def build(width: int = 32) -> nn.Module:
    return Tabular(width)
