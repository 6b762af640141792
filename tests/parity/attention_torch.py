"""A PyTorch model with attention layers and dropout, from tokens and tokens_mask [n, width] to logits [n, 2]."""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.encoder = nn.TransformerEncoderLayer(
            16, 2, 32, dropout, nn.functional.gelu
        )  # the first dimension is the token
        self.pool = nn.MultiheadAttention(16, 2, dropout, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, tokens: torch.Tensor, tokens_mask: torch.Tensor) -> torch.Tensor:
        padding = tokens_mask == 0
        x = self.encoder(self.embedding(tokens).transpose(0, 1), src_key_padding_mask=padding).transpose(0, 1)
        pooled, _ = self.pool(x[:, :1], x, x, key_padding_mask=padding)
        logits: torch.Tensor = self.head(pooled[:, 0])
        return logits


def build(dropout: float) -> nn.Module:
    return Classifier(dropout)
