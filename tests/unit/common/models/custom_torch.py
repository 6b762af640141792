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


class Centred(Plain):
    """A model with a moving average of its inputs."""

    centre: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.centre = 0.9 * self.centre + 0.1 * x.mean(0)
        return super().forward(x - self.centre)


class Noisy(nn.Module):
    """A layer that multiplies by random numbers in training."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.bernoulli(torch.full_like(x, 0.5)) if self.training else x


def centred() -> nn.Module:
    return Centred()


def spectral() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(5, 4)), nn.Linear(4, 3))


def normalized() -> nn.Module:
    """Build a model with a parametrization that has no state, and with BatchNorm."""
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), nn.BatchNorm1d(4), nn.Linear(4, 3))


def noisy() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.Sequential(nn.ReLU(), Noisy()), nn.Linear(4, 3))


def clipped() -> nn.Module:
    model = Plain()
    model.hidden.weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
    return model


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


def compute_losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


def compute_mean_loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, labels)


def compute_float32_losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return losses, but fail on the float64 outputs of an evaluation."""
    return outputs @ torch.ones(3, dtype=torch.float32)
