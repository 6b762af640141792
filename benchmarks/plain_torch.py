"""The reference for speed: DistributedDataParallel as one writes it by hand, over batches that are ready in memory."""

from collections.abc import Sequence

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from transformers import BertForSequenceClassification

from common.models.initial_weights import InitialCheckpoint


class PlainDDP:
    """One rank; the process group is there already."""

    def __init__(self, initial: InitialCheckpoint) -> None:
        self.model = DistributedDataParallel(BertForSequenceClassification.from_pretrained(initial.directory))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.model.train()

    def train(self, batches: Sequence[dict[str, torch.Tensor]], log_every: int) -> None:
        for index, batch in enumerate(batches):
            logits = self.model(
                input_ids=batch["input_ids"],
                token_type_ids=batch["token_type_ids"],
                attention_mask=batch["attention_mask"],
            ).logits
            loss = cross_entropy(logits, batch["labels"])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if index % log_every == 0:
                loss.item()
