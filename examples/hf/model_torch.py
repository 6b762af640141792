"""DistilBERT of Hugging Face with a classifier, for the data of examples.lstm."""

import torch
from torch import nn
from transformers import DistilBertConfig, DistilBertModel


class Classifier(nn.Module):
    """A model that maps tokens and tokens_mask (0 for padding), both [n, length], to logits [n, classes]."""

    def __init__(self, vocabulary: int, classes: int, width: int) -> None:
        super().__init__()
        config = DistilBertConfig(
            vocab_size=vocabulary,
            max_position_embeddings=32,
            n_layers=2,
            n_heads=2,
            dim=width,
            hidden_dim=4 * width,
            dropout=0.0,
            attention_dropout=0.0,
            pad_token_id=None,
        )
        self.encoder = DistilBertModel(config)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor, tokens_mask: torch.Tensor) -> torch.Tensor:
        states = self.encoder(input_ids=tokens, attention_mask=tokens_mask).last_hidden_state
        logits: torch.Tensor = self.head(states[:, 0])
        return logits


def build(vocabulary: int = 20, classes: int = 2, width: int = 32) -> nn.Module:
    return Classifier(vocabulary, classes, width)
