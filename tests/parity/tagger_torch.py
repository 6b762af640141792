"""A PyTorch model that chooses a class for each token: the second axis. Its auxiliary output has no loss."""

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.tags = nn.Conv1d(6, 16, 3, padding=1), nn.Conv1d(16, 3, 1)
        self.auxiliary = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.tanh(self.hidden(x.transpose(1, 2)))
        return {"logits": self.tags(hidden), "auxiliary": self.auxiliary(hidden.mean(2))}


def build() -> nn.Module:
    return Tagger()
