"""BERT for sentence-pair classification: Hugging Face's."""

import torch
from torch.nn import Module
from transformers import BertForSequenceClassification
from transformers.utils.logging import disable_progress_bar

from common.models.initial_weights import InitialCheckpoint


class _Bert(BertForSequenceClassification):
    """Called with the inputs of a batch; returns logits [n, classes]."""

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = super().forward(**inputs).logits
        return logits


def build(initial: InitialCheckpoint) -> Module:
    """The model with the initial weights."""
    disable_progress_bar()
    return _Bert.from_pretrained(initial.directory, dtype=torch.float32)
