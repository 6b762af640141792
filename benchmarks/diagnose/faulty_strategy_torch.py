"""A strategy in one process that computes the gradients of its replicas one after the other, and makes a mistake.

`strategy.fault` names the mistake. training_plants.py lists them with the cause that a diagnosis must name for each.
"""

from collections.abc import Iterable, Iterator

import torch
from typing_extensions import override

from benchmarks.diagnose.faulty_strategy import FaultyStrategySettings, take_shard
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
    """The strategy `faulty`."""

    def __init__(self, context: RunContext, group: Group) -> None:
        super().__init__(context, group)
        config = context.config
        self.fault = self.settings.fault
        self.parameters = list(trainable_parameters(self.model).values())
        self.previous: Gradients | None = None
        self._misconfigure(config.optimizer.beta1)

    def _misconfigure(self, beta1: float | None) -> None:
        """Change the hyperparameters of the optimizer."""
        optimizer = self.optimizer._optimizer
        (group,) = optimizer.param_groups
        if self.fault == "epsilon":
            group["eps"] = 1e-5
        if self.fault in ("decay_coupled", "no_decay"):
            group["weight_decay"] = 0.0
        if self.fault == "beta2":
            group["betas"] = (beta1, 0.99)
        if self.fault == "decay_on_matrices":
            vectors = [parameter for parameter in group["params"] if parameter.dim() <= 1]
            group["params"] = [parameter for parameter in group["params"] if parameter.dim() > 1]
            optimizer.add_param_group({**group, "params": vectors, "weight_decay": 0.0})

    @override
    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        self.model.train()
        for batch in batches:
            losses, gradients_by_shard, shares = [], [], []
            for rank in range(self.world_size):
                shard = take_shard(batch, rank, self.config, self.fault)
                shares.append(sum(float(part["weights"].sum()) for part in shard) / batch.weight)
                losses.append(
                    backward(self.model, self.task, to_tensors(shard, self.device), batch.weight, self.precision)
                )
                gradients_by_shard.append([parameter.grad.to_dense().clone() for parameter in self.parameters])  # type: ignore[union-attr]
                self.model.zero_grad()
            reduced = self._reduce(gradients_by_shard, shares)
            for parameter, gradient in zip(self.parameters, reduced, strict=True):
                parameter.grad = gradient
            norm = self._update(batch.step)
            yield StepResult(batch, torch.stack(losses).sum(), norm)

    def _reduce(self, shards: list[Gradients], shares: list[float]) -> Gradients:
        """Sum the gradients of the shards, with the faults of a reduction. `shares` of the batch's weight, by shard."""
        count = len(shards)
        if self.fault == "mean_of_means":
            shards = [
                [gradient / share / count for gradient in shard] for shard, share in zip(shards, shares, strict=True)
            ]
        if self.fault == "clip_before":
            shards = [self._clip_shard(shard, share) for shard, share in zip(shards, shares, strict=True)]
        if self.fault == "missing":
            shards = shards[:-1]
        if self.fault == "bfloat16":
            shards = [[gradient.bfloat16().double() for gradient in shard] for shard in shards]
        summed = [torch.stack(parts).sum(0) for parts in zip(*shards, strict=True)]
        if self.fault == "averaged_twice":
            summed = [gradient / count for gradient in summed]
        if self.fault == "not_averaged":
            summed = [gradient * count for gradient in summed]
        if self.fault == "clip_per_variable":
            max_norm = self.config.optimizer.max_grad_norm or 1.0
            summed = [gradient * min(1.0, max_norm / (float(gradient.norm()) + 1e-6)) for gradient in summed]
        if self.fault in ("decay_coupled", "l2_twice"):
            decay = self.config.optimizer.weight_decay
            weights = [parameter.detach() for parameter in self.parameters]
            summed = [gradient + decay * weight for gradient, weight in zip(summed, weights, strict=True)]
        if self.fault == "stale":
            summed, self.previous = self.previous or summed, summed
        return summed

    def _clip_shard(self, shard: Gradients, share: float) -> Gradients:
        """Clip the gradients of a shard by the norm of their own mean."""
        norm = torch.stack([gradient.norm() for gradient in shard]).norm() / share
        max_norm = self.config.optimizer.max_grad_norm or 1.0
        return [gradient * min(1.0, max_norm / (float(norm) + 1e-6)) for gradient in shard]

    def _update(self, step: int) -> torch.Tensor:
        """Update the parameters, with the faults of an optimizer. Return the norm of the gradients."""
        if self.fault == "rate_scaled":
            return update_at_rate(self, compute_learning_rate(self.config, step) * self.world_size)
        if self.fault == "schedule_late":
            return update_at_rate(self, compute_learning_rate(self.config, step - 1) if step > 1 else 0.0)
        if self.fault == "rate_inside":
            return update_at_rate(self, 1.0, compute_learning_rate(self.config, step))
        if self.fault == "state_lost" and step == 2:
            self.optimizer._optimizer.state.clear()
        return self.optimizer.update(step)


def update_at_rate(strategy: Faulty, rate: float, gradient_factor: float = 1.0) -> torch.Tensor:
    """Update the parameters at another learning rate, with multiplied gradients. Return the norm of the gradients."""
    gradients = [parameter.grad for parameter in strategy.parameters if parameter.grad is not None]
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    max_norm = strategy.config.optimizer.max_grad_norm
    for gradient in gradients:
        if max_norm is not None:
            gradient *= (max_norm / (norm + 1e-6)).clamp(max=1.0)
        gradient *= gradient_factor
    optimizer = strategy.optimizer._optimizer
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad()
    return norm
