"""PyTorch models in the styles of public repositories; public_keras.py has one of the same name for each."""

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  the usual name
from torch import Tensor, nn


class Tagger(nn.Module):
    """A linear layer for each step between two others of its size, as in networks that read text in images."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.project, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        steps = F.relu(self.project(torch.tanh(self.embed(x)).reshape(-1, 6)))
        output: Tensor = self.head(steps.view(len(x), -1, 6).sum(1))
        return output


def tagger() -> nn.Module:
    return Tagger()


class Generator(nn.Module):
    """A generator of images, which divides the features of a linear layer into channels, rows and columns."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.project = nn.Sequential(nn.Linear(6, channels * 12), nn.BatchNorm1d(channels * 12), nn.ReLU())
        self.blocks = nn.Sequential(nn.Unflatten(1, (channels, 3, 4)), nn.Conv2d(channels, 2, 3))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.blocks(self.project(x))
        return output


def generator() -> nn.Module:
    return Generator(5)


class Stacks(nn.Module):
    """Blocks in plain lists, whose parameters alone are registered."""

    def __init__(self) -> None:
        super().__init__()
        self.stacks = [[nn.Linear(6, 6), nn.Linear(6, 6)], [nn.Linear(6, 6)]]
        self.all_parameters = nn.ParameterList(
            [p for stack in self.stacks for block in stack for p in block.parameters()]
        )

    def forward(self, x: Tensor) -> Tensor:
        for stack in self.stacks:
            for block in stack:
                x = x - torch.tanh(block(x))
        return x


def stacks() -> nn.Module:
    return Stacks()


class Unregistered(nn.Module):
    """Layers in a plain list, which PyTorch does not see."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.head = nn.Linear(6, 2)
        self.blocks = {"first": [nn.Dropout(0.5) if kind == "dropout" else nn.Linear(6, 6)]}

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.blocks["first"][0](x))
        return output


def unregistered(kind: str) -> nn.Module:
    return Unregistered(kind)


class Branches(nn.Module):
    """Two linear layers on one input, of which the other framework computes the second one first."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.theta_b_fc, self.theta_f_fc = nn.Linear(6, 5), nn.Linear(5, 6), nn.Linear(5, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = F.relu(self.body(x))
        return x - torch.sin(self.theta_b_fc(features)), torch.tanh(self.theta_f_fc(features))


class Blocks(nn.Module):
    """Blocks one after the other, which a functional model computes side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Branches(), Branches()])

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for block in self.blocks:
            x, forecast = block(x)
            total = total + forecast
        return total + x


def branches() -> nn.Module:
    return Blocks()


class Interaction(nn.Module):
    """A convolution of known kind beside parameters of the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(5, 4, 1)
        self.query, self.scale = nn.Linear(6, 6), nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x)).sum(1) * self.scale + self.query(x[:, 0])


def interaction() -> nn.Module:
    return Interaction()


def weight_norm(style: str) -> nn.Module:
    norm = (torch.nn.utils if style == "hooks" else torch.nn.utils.parametrizations).weight_norm
    return nn.Sequential(norm(nn.Conv1d(3, 4, 3)), nn.ReLU(), norm(nn.Conv1d(4, 4, 3)), nn.Flatten(), nn.Linear(20, 2))


class TextNetwork(nn.Module):
    """Convolutions as wide as the vectors of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv2d(1, 5, (size, 6)) for size in (2, 3)])

    def forward(self, x: Tensor) -> Tensor:
        features = [F.relu(convolution(x.unsqueeze(1))).squeeze(3) for convolution in self.convolutions]
        return torch.cat([feature.max(2)[0] for feature in features], 1)


def text_network() -> nn.Module:
    return TextNetwork()


class Sampler(nn.Module):
    """A latent sample around a mean, as in variational autoencoders."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.head = nn.Linear(6, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        mean = self.mean(x)
        output: Tensor = self.head(mean + torch.randn_like(mean))
        return output


def sampler() -> nn.Module:
    return Sampler()


class Positions(nn.Module):
    """A table that is computed in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 2)
        self.table = torch.from_numpy(np.sin(np.arange(6, dtype=np.float32) / np.float32(7)))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(x + self.table)
        return output


def positions() -> nn.Module:
    return Positions()


class Constants(nn.Module):
    """Constants that are made where they are needed, without a type."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.identity = nn.Linear(6, 6), torch.eye(6)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(x @ self.identity) * torch.tensor([0.1] * 6) + torch.arange(0.0, 6.0)
        return output


def constants() -> nn.Module:
    return Constants()


class Shortcut(nn.Module):
    """A separable convolution with pooling, beside a shortcut of the same sizes whose convolution has a stride."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise, self.pointwise = nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False), nn.Conv2d(4, 4, 1)
        self.shortcut, self.head = nn.Conv2d(4, 4, 1, stride=2), nn.Conv2d(4, 3, 1)
        self.stem = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        pooled = nn.functional.max_pool2d(self.pointwise(self.depthwise(x.relu())), 2)
        output: Tensor = self.head(pooled + self.shortcut(x)).mean((2, 3))
        return output


def shortcut() -> nn.Module:
    return Shortcut()


class Fourier(nn.Module):
    """A Fourier transform in complex64, which float32 models need a cast for in the other framework."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(x + torch.fft.fft2(x.to(torch.complex64)).real)
        return output


def fourier() -> nn.Module:
    return Fourier()


class ScaledBranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.scale = nn.Conv2d(4, 4, 3, padding=1), nn.Parameter(torch.full((4, 1, 1), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = x + self.scale * self.convolution(x).relu()
        return output


def scaled_branches() -> nn.Module:
    return nn.Sequential(*(ScaledBranch() for _ in range(3)))


def likelihoods() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3), nn.LogSoftmax(-1))
