"""One process computes the gradients of the replicas one after the other, and makes a mistake."""

from collections.abc import Iterable, Iterator

import torch
from typing_extensions import override

from benchmarks.diagnose.strategies import FaultyStrategySettings, shard_of
from common.data.batches import GlobalBatch
from common.run.context import RunContext
from common.training.schedule import compute_learning_rate
from common.training.strategy import StepResult
from torch_impl.batches import to_tensors
from torch_impl.communication.rendezvous import Group
from torch_impl.models import trainable_parameters
from torch_impl.step import backward
from torch_impl.strategies.single import Single

Gradients = list[torch.Tensor]


class Faulty(Single[FaultyStrategySettings]):
    def __init__(self, context: RunContext, group: Group) -> None:
        super().__init__(context, group)
        config = context.config
        self.fault = self.settings.fault
        self.parameters = list(trainable_parameters(self.model).values())
        self.last: Gradients | None = None
        self.last_norm = torch.zeros(())
        settings, inner = config.optimizer, self.optimizer._optimizer
        for group_ in inner.param_groups:
            if self.fault == "epsilon":
                group_["eps"] = 1e-5
            if self.fault in ("decay_coupled", "no_decay"):
                group_["weight_decay"] = 0.0
            if self.fault == "beta2":
                group_["betas"] = (settings.beta1, 0.99)
            if self.fault == "decay_on_matrices":
                matrices = [each for each in group_["params"] if each.dim() > 1]
                vectors = [each for each in group_["params"] if each.dim() <= 1]
                group_["params"] = matrices
        if self.fault == "decay_on_matrices":
            inner.add_param_group(
                {**{k: v for k, v in inner.param_groups[0].items() if k != "params"}, "params": vectors}
            )
            inner.param_groups[1]["weight_decay"] = 0.0

    @override
    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        self.model.train()
        for batch in batches:
            losses, shards, sizes = [], [], []
            for rank in range(self.world_size):
                shard = shard_of(batch, rank, self.config, self.fault)
                sizes.append(sum(float(part["weights"].sum()) for part in shard))
                losses.append(
                    backward(self.model, self.task, to_tensors(shard, self.device), batch.weight, self.precision)
                )
                shards.append([each.grad.to_dense().clone() for each in self.parameters])  # type: ignore[union-attr]
                self.model.zero_grad()
            reduced = self.reduce(shards, [each / batch.weight for each in sizes])
            for parameter, gradient in zip(self.parameters, reduced, strict=True):
                parameter.grad = gradient
            norm = self.update(batch.step)
            yield StepResult(batch, torch.stack(losses).sum(), norm)

    def reduce(self, shards: list[Gradients], share: list[float]) -> Gradients:
        count = len(shards)
        if self.fault == "mean_of_means":
            shards = [[each / part / count for each in shard] for shard, part in zip(shards, share, strict=True)]
        if self.fault == "clip_before":
            shards = [self.clip(shard, part) for shard, part in zip(shards, share, strict=True)]
        if self.fault == "missing":
            shards = shards[:-1]
        if self.fault == "bfloat16":
            shards = [[each.bfloat16().double() for each in shard] for shard in shards]
        summed = [torch.stack(parts).sum(0) for parts in zip(*shards, strict=True)]
        if self.fault == "averaged_twice":
            summed = [each / count for each in summed]
        if self.fault == "not_averaged":
            summed = [each * count for each in summed]
        if self.fault == "clip_per_variable":
            largest = self.config.optimizer.max_grad_norm or 1.0
            summed = [each * min(1.0, largest / (float(each.norm()) + 1e-6)) for each in summed]
        if self.fault == "decay_coupled":
            decay = self.config.optimizer.weight_decay
            summed = [each + decay * p.detach() for each, p in zip(summed, self.parameters, strict=True)]
        if self.fault == "l2_twice":
            penalty = self.config.optimizer.weight_decay
            summed = [each + penalty * p.detach() for each, p in zip(summed, self.parameters, strict=True)]
        if self.fault == "stale":
            summed, self.last = self.last or summed, summed
        return summed

    def clip(self, shard: Gradients, part: float) -> Gradients:
        norm = torch.stack([each.norm() for each in shard]).norm() / part
        largest = self.config.optimizer.max_grad_norm or 1.0
        return [each * min(1.0, largest / (float(norm) + 1e-6)) for each in shard]

    def update(self, step: int) -> torch.Tensor:
        if self.fault == "rate_scaled":
            with_rate(self, step, compute_learning_rate(self.config, step) * self.world_size)
            return self.last_norm
        if self.fault == "schedule_late":
            with_rate(self, step, compute_learning_rate(self.config, step - 1) if step > 1 else 0.0)
            return self.last_norm
        if self.fault == "rate_inside":
            with_rate(self, step, 1.0, compute_learning_rate(self.config, step))
            return self.last_norm
        if self.fault == "state_lost" and step == 2:
            self.optimizer._optimizer.state.clear()
        return self.optimizer.update(step)


def with_rate(strategy: Faulty, step: int, rate: float, inside: float = 1.0) -> None:
    """An update at another learning rate. inside: what the gradients are multiplied by."""
    norm = torch.stack([each.grad.norm() for each in strategy.parameters]).norm()  # type: ignore[union-attr]
    largest = strategy.config.optimizer.max_grad_norm
    for each in strategy.parameters:
        if largest is not None and each.grad is not None:
            each.grad *= (largest / (norm + 1e-6)).clamp(max=1.0)
        if each.grad is not None:
            each.grad *= inside
    inner = strategy.optimizer._optimizer
    for group in inner.param_groups:
        group["lr"] = rate
    inner.step()
    inner.zero_grad()
    strategy.last_norm = norm
