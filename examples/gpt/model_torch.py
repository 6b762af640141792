"""A small GPT: a causal language model whose output layer uses the weights of the embedding (tied embeddings)."""

import torch
from torch import nn


class Block(nn.Module):
    """A transformer block: causal attention (a token sees itself and earlier tokens) and a perceptron."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.query, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)  # softmax ignores what a bias adds to all scores of a query
        self.attention_dropout = nn.Dropout(dropout)
        self.output = nn.Linear(width, width)
        self.dropout1 = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout2 = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout1(self.attend(self.norm1(x)))
        return x + self.dropout2(self.down(nn.functional.gelu(self.up(self.norm2(x)))))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        n, tokens, width = x.shape
        query, key, value = (
            layer(x).view(n, tokens, self.heads, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(2, 3) * (width // self.heads) ** -0.5
        is_later = torch.ones(tokens, tokens, dtype=torch.bool, device=x.device).triu(1)  # [queries, keys]
        weights = self.attention_dropout(scores.masked_fill(is_later, float("-inf")).softmax(-1))
        result: torch.Tensor = self.output((weights @ value).transpose(1, 2).reshape(n, tokens, width))
        return result


class GPT(nn.Module):
    """A language model that maps input_ids [n, tokens] to logits of the next token, [n, tokens, vocabulary]."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, block_count: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(block_count))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.tokens(input_ids) + self.positions[: input_ids.shape[1]])
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T


def build(
    vocabulary: int = 256, length: int = 64, width: int = 32, heads: int = 2, layers: int = 2, dropout: float = 0.1
) -> nn.Module:
    return GPT(vocabulary, length, width, heads, layers, dropout)
