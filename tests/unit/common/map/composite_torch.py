"""PyTorch models with layers that compute several sublayers at once; composite_keras.py has their counterparts."""

import torch
import torch.nn.functional as F  # noqa: N812  the usual name
from torch import Tensor, nn


class Attention(nn.Module):
    """A linear layer, and an attention of its features in one of several variants."""

    def __init__(self, variant: str) -> None:
        super().__init__()
        self.first, self.variant = nn.Linear(8, 8), variant
        self.attention = nn.MultiheadAttention(8, 2, batch_first=variant != "time_first")

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.first(x.transpose(0, 1) if self.variant == "time_first" else x)
        tokens = x.shape[1]
        if self.variant == "causal":
            mask = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
            return self.attention(x, x, x, attn_mask=mask, is_causal=True)[0]
        if self.variant == "padded":
            return self.attention(x, x, x, key_padding_mask=(torch.arange(tokens) > 2).expand(len(x), -1))[0]
        if self.variant == "scores":
            return self.attention(x, x, x, average_attn_weights=False)
        if self.variant == "cross":
            return self.attention(value=torch.tanh(x), key=torch.tanh(x), query=x, need_weights=False)[0]
        attended = self.attention(x, x, x, need_weights=False)[0]
        return attended.transpose(0, 1) if self.variant == "time_first" else attended


class GroupedAttention(nn.Module):
    """Four heads of queries, and two heads of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(8, size) for size in (8, 4, 4, 8))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (-1, 2)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        return self.output(mixed.transpose(1, 2).flatten(2))


class Recurrent(nn.Module):
    """An LSTM of features as large as its states, which may read them from the last to the first."""

    def __init__(self, layers: int = 1, bidirectional: bool = False, reverse: bool = False) -> None:
        super().__init__()
        self.first, self.reverse = nn.Linear(6, 6), reverse
        units = 3 if bidirectional else 6
        self.lstm = nn.LSTM(6, units, layers, batch_first=True, bidirectional=bidirectional)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.lstm(x.flip(1) if self.reverse else x)[0]


class Positions(nn.Module):
    """An own layer that adds its parameter, as a Keras layer without the addition has it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table


class MaskedStates(nn.Module):
    """The state of an LSTM after the last token that is not 0."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.lstm, self.head = nn.Embedding(11, 6), nn.LSTM(6, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        last = (torch.arange(tokens.shape[1]) * (tokens != 0)).amax(1)
        states = self.lstm(self.tokens(tokens))[0]
        return self.head(states[torch.arange(len(tokens)), last])


def attention(variant: str = "plain") -> nn.Module:
    return Attention(variant)


def grouped_attention() -> nn.Module:
    return GroupedAttention()


def decoder() -> nn.Module:
    return nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


def stacked() -> nn.Module:
    return Recurrent(2)


def stacked_bidirectional() -> nn.Module:
    return Recurrent(2, bidirectional=True)


def backwards() -> nn.Module:
    return Recurrent(reverse=True)


def separable() -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 4, 3, groups=4, bias=False), nn.Conv2d(4, 4, 1))


def positions() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), Positions(), nn.Linear(8, 2))


def masked_states() -> nn.Module:
    return MaskedStates()
