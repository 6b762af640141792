"""The sequential strategy in PyTorch: its settings are in sequential.py."""

from collections.abc import Iterable, Iterator

import torch
from typing_extensions import override

from common.data.batches import GlobalBatch
from common.training.strategy import StepResult
from torch_impl.batches import to_tensors
from torch_impl.step import backward, seed_dropout
from torch_impl.strategies.single import Single

from .sequential import SequentialSettings


class Sequential(Single[SequentialSettings]):
    """A strategy that inherits all but the training step from `Single`."""

    @override
    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        self.model.train()
        for batch in batches:
            losses = []
            for replica in self.settings.order:
                seed_dropout(self.config, batch.step, replica)
                shard = to_tensors(batch.shard(replica, self.world_size), self.device)
                loss = backward(self.model, self.task, shard, batch.weight, self.precision)  # adds up gradients
                losses.append(loss)
            yield StepResult(batch, torch.stack(losses).sum(), self.optimizer.update(batch.step))
