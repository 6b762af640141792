"""An encoder and decoder in PyTorch. translation_keras.py is the same model in Keras."""

import torch
from torch import nn
from typing_extensions import override

from tests.parity.translation_data import WORDS


class Translation(nn.Module):
    """A decoder that attends to the encoded source tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, 8), nn.Embedding(WORDS, 8)
        self.encoder, self.decoder, self.head = nn.Linear(8, 8), nn.Linear(16, 8), nn.Linear(8, WORDS)

    @override
    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, decoder_input_ids: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        encoded, target = torch.tanh(self.encoder(self.source(input_ids))), self.target(decoder_input_ids)
        scores = target @ encoded.transpose(1, 2) - 1e9 * (1 - attention_mask[:, None].to(target.dtype))
        states = torch.cat((target, scores.softmax(-1) @ encoded), -1)
        return {"logits": self.head(torch.tanh(self.decoder(states)))}


def build() -> nn.Module:
    """Return the model with random weights."""
    return Translation()
