"""PyTorch models as users write them, correct and wrong ones. They take x [n, 5] and return logits of 3 classes."""

import torch
from torch import nn


class Plain(nn.Module):
    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(5, 4), nn.Linear(4, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(torch.relu(self.hidden(x)))
        return result


class Late(nn.Module):
    """A model that creates its parameters in the first call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "out"):
            self.out = nn.Linear(5, 3)
        result: torch.Tensor = self.out(x)
        return result


class Masked(Plain):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x * mask)


class TwoInputs(Plain):
    def forward(self, x: torch.Tensor, missing: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x + missing)


class TwoOutputs(Plain):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        return super().forward(x), x


class Stacked(nn.Module):
    """A model with dropout between the layers of its LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(5, 4, 2, dropout=0.1, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(self.lstm(x[:, None])[0][:, 0])
        return result


def plain(classes: int = 3) -> nn.Module:
    return Plain(classes)


def late() -> nn.Module:
    return Late()


def masked() -> nn.Module:
    return Masked()


def two_inputs() -> nn.Module:
    return TwoInputs()


def two_outputs() -> nn.Module:
    return TwoOutputs()


def stacked() -> nn.Module:
    return Stacked()
