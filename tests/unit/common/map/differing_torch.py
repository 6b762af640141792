"""PyTorch modules for tests of diagnoses: as they should be, or with one difference from differing_keras.py."""

import torch
from torch import nn


class Scale(nn.Module):
    """A learned factor of each feature."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gamma


class Block(nn.Module):
    """A residual block of a dense layer, and one of two dense layers."""

    def __init__(self, parts: tuple[str, ...]) -> None:
        super().__init__()
        self.norm1, self.first = nn.LayerNorm(8), nn.Linear(8, 8)
        self.norm2 = nn.LayerNorm(8) if "norm" in parts else nn.Identity()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale = Scale(8) if "scale" in parts else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.first(self.norm1(x)).tanh()
        return x + self.scale(self.down(nn.functional.gelu(self.up(self.norm2(x)))))


def residual(torch_lacks: str = "", keras_lacks: str = "") -> nn.Module:
    """Build two residual blocks. A part that one side lacks is in the first block only."""
    parts = tuple(part for part in (torch_lacks, keras_lacks, "norm") if part != torch_lacks)
    blocks = [Block(parts), Block(("norm",))]
    norm = nn.Identity() if torch_lacks == "batch_norm" else nn.BatchNorm1d(8)
    last = nn.Linear(8, 8) if "dense" in parts else nn.Identity()
    return nn.Sequential(nn.Linear(6, 8), norm, nn.ReLU(), *blocks, last, nn.ReLU(), nn.Linear(8, 3, "bias" in parts))


class Attention(nn.Module):
    """An attention to the tokens that are not 0, with embeddings of positions."""

    def __init__(self, variant: str) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(20, 8), nn.Embedding(12, 8)
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)
        self.variant = variant

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1])
        if self.variant == "reversed":
            positions = positions.flip(0)
        x = self.tokens(tokens) + self.positions(positions + (self.variant == "shifted"))
        mask = None if self.variant == "unmasked" else tokens == 0
        return self.head((x + self.attention(x, x, x, mask, need_weights=False)[0]).mean(1))


def attention(torch_variant: str = "", keras_variant: str = "") -> nn.Module:
    return Attention(torch_variant)


class TwoOutputs(nn.Module):
    """The normalized features, and what a layer computes from them."""

    def __init__(self, is_normalized: bool) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.norm = nn.LayerNorm(8) if is_normalized else nn.Identity()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.norm(self.first(x))
        return x, self.head(x)


def two_outputs(lacks: str = "") -> nn.Module:
    return TwoOutputs(lacks != "torch")
