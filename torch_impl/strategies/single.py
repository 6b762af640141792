"""One replica on one device: what every other strategy must equal."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from common.config.schema import Config
from common.data.batches import GlobalBatch
from common.models.initial_weights import InitialCheckpoint
from common.run.checkpoint import Checkpoint, State
from common.training.loop import Evaluation, StepResult
from torch_impl.batches import to_tensors
from torch_impl.device import peak_memory_bytes, replica_devices
from torch_impl.optimizer import Optimizer
from torch_impl.step import (
    build_model,
    compute_logits,
    evaluation_sums,
    load_parameters,
    parameters_by_name,
    seed_dropout,
    summed_loss,
)


class Single:
    world_size = 1
    is_chief = True

    def __init__(self, config: Config, initial: InitialCheckpoint) -> None:
        self.device = replica_devices(1)[0]
        self.config, self.precision = config, config.train.precision
        self.model = build_model(config, initial).to(self.device)
        self.optimizer = Optimizer(config, dict(self.model.named_parameters()))

    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        self.model.train()
        for batch in batches:
            seed_dropout(self.config, batch.step)
            shard = to_tensors(batch.shard(0, 1), self.device)
            logits = compute_logits(self.model, shard, self.precision)
            loss = summed_loss(logits, shard) / batch.size
            loss.backward()
            grad_norm = self.optimizer.update(batch.step)
            yield StepResult(batch, loss.detach(), grad_norm)

    @torch.no_grad()
    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        self.model.eval()
        sums, count = torch.zeros(2, dtype=torch.float64, device=self.device), 0
        for batch in batches:
            shard = to_tensors(batch.shard(0, 1), self.device)
            logits = compute_logits(self.model, shard, self.precision)
            sums += evaluation_sums(logits, shard)
            count += batch.size
        summed_loss, right = sums.tolist()
        return Evaluation(summed_loss, right, count)

    def state(self) -> State:
        return State(parameters_by_name(self.model), self.optimizer.slots())

    def load(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.load()
        load_parameters(self.model, state.parameters)
        self.optimizer.load(state.slots, checkpoint.position)

    def report(self) -> dict[str, Any]:
        return {"peak_memory_bytes": peak_memory_bytes([self.device])}
