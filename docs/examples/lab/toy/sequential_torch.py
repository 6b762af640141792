"""The strategy in PyTorch."""

from collections.abc import Iterable, Iterator

import torch

from common.data.batches import GlobalBatch
from common.run.context import RunContext
from common.training.strategy import StepResult
from torch_impl.batches import to_tensors
from torch_impl.communication.rendezvous import Group
from torch_impl.step import backward, seed_dropout
from torch_impl.strategies.single import Single

from .sequential import SequentialSettings


class Sequential(Single):
    def __init__(self, context: RunContext, group: Group) -> None:
        super().__init__(context, group)
        config = context.config
        assert isinstance(config.strategy, SequentialSettings)
        self.world_size, self.order = config.strategy.world_size, config.strategy.order

    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        self.model.train()
        for batch in batches:
            losses = []
            for replica in self.order:
                seed_dropout(self.config, batch.step, replica)
                shard = to_tensors(batch.shard(replica, self.world_size), self.device)
                losses.append(backward(self.model, self.task, shard, batch.weight, self.precision))
            yield StepResult(batch, torch.stack(losses).sum(), self.optimizer.update(batch.step))
