"""A bidirectional LSTM that classifies texts of any length."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Classifier(nn.Module):
    """A model that maps tokens and tokens_mask (0 for padding), both [n, length], to logits [n, classes]."""

    def __init__(self, vocabulary: int, classes: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, tokens: torch.Tensor, tokens_mask: torch.Tensor) -> torch.Tensor:
        lengths = tokens_mask.sum(1).cpu()
        packed = pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=tokens.shape[1])
        mean = states.sum(1) / lengths.to(states)[:, None]
        logits: torch.Tensor = self.head(mean)
        return logits


def build(vocabulary: int = 20, classes: int = 2, width: int = 16) -> nn.Module:
    return Classifier(vocabulary, classes, width)
