"""The PyTorch counterpart of keras_two_keras.py."""

import torch
from torch import nn


class Regression(nn.Module):
    """A model that maps numbers [n, 9] and sex [n], which is 0 or 1, to the progression of the disease [n, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.dropout, self.output = nn.Linear(10, 16), nn.Dropout(0.1), nn.Linear(16, 1)

    def forward(self, numbers: torch.Tensor, sex: torch.Tensor) -> torch.Tensor:
        x = torch.cat([numbers, sex[:, None].to(numbers.dtype)], dim=1)
        result: torch.Tensor = self.output(self.dropout(torch.tanh(self.hidden(x))))
        return result


def build() -> nn.Module:
    return Regression()
