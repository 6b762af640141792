"""A PyTorch model with attention layers and dropout, from tokens and tokens_mask [n, width] to logits [n, 2].

The loss does not depend on the auxiliary output [n, 3], so the parameters of its layer get no gradient.
"""

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
        self.head, self.auxiliary_head = nn.Linear(16, 2), nn.Linear(16, 3)

    def forward(self, tokens: torch.Tensor, tokens_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        padding = tokens_mask == 0
        x = self.encoder(self.embedding(tokens).transpose(0, 1), src_key_padding_mask=padding).transpose(0, 1)
        pooled, _ = self.pool(x[:, :1], x, x, key_padding_mask=padding)
        return {"logits": self.head(pooled[:, 0]), "auxiliary": self.auxiliary_head(pooled[:, 0])}


def build(dropout: float) -> nn.Module:
    return Classifier(dropout)
