"""A strategy in one process that computes the gradients of its replicas one after the other, and makes a mistake.

`strategy.fault` names the mistake. training_plants.py lists them with the cause that a diagnosis must name for each.
"""

from collections.abc import Iterable, Iterator

import tensorflow as tf
from typing_extensions import override

from benchmarks.diagnose.faulty_strategy import FaultyStrategySettings, take_shard
from common.data.batches import GlobalBatch
from common.run.context import RunContext
from common.training.schedule import compute_learning_rate
from common.training.strategy import StepResult
from tf_impl.batches import to_tensors
from tf_impl.communication.rendezvous import Group
from tf_impl.step import backward
from tf_impl.strategies.single import Single

Gradients = list[tf.Tensor]


class Faulty(Single[FaultyStrategySettings]):
    """The strategy `faulty`."""

    def __init__(self, context: RunContext, group: Group) -> None:
        super().__init__(context, group)
        self.fault = self.settings.fault
        self.previous: Gradients | None = None

    @override
    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        for batch in batches:
            losses, gradients_by_shard, shares = [], [], []
            for rank in range(self.world_size):
                shard = take_shard(batch, rank, self.config, self.fault)
                shares.append(sum(float(part["weights"].sum()) for part in shard) / batch.weight)
                loss, gradients = backward(
                    self.model, self.task, to_tensors(shard), tf.constant(batch.weight), self.optimizer.parameters
                )
                losses.append(loss)
                gradients_by_shard.append([tf.convert_to_tensor(gradient) for gradient in gradients])
            scalars = self.optimizer.compute_scalars(batch.step)
            if self.fault == "schedule_late":
                rate = compute_learning_rate(self.config, batch.step - 1) if batch.step > 1 else 0.0
                scalars = tf.constant(self.optimizer.correct_for_bias(rate, batch.step), tf.float64)
            norm = self.optimizer.update(self._reduce(gradients_by_shard, shares), scalars)
            yield StepResult(batch, tf.add_n(losses), norm)

    def _reduce(self, shards: list[Gradients], shares: list[float]) -> Gradients:
        """Sum the gradients of the shards, with the faults of a reduction. `shares` of the batch's weight, by shard."""
        count = len(shards)
        if self.fault == "mean_of_means":
            shards = [
                [gradient / share / count for gradient in shard] for shard, share in zip(shards, shares, strict=True)
            ]
        if self.fault == "missing":
            shards = shards[:-1]
        if self.fault == "bfloat16":
            shards = [[tf.cast(tf.cast(x, tf.bfloat16), x.dtype) for x in shard] for shard in shards]
        summed = [tf.add_n(parts) for parts in zip(*shards, strict=True)]
        if self.fault == "averaged_twice":
            summed = [gradient / count for gradient in summed]
        if self.fault == "not_averaged":
            summed = [gradient * count for gradient in summed]
        if self.fault == "clip_per_variable":
            max_norm = self.config.optimizer.max_grad_norm or 1.0
            summed = [x * tf.minimum(tf.cast(1, x.dtype), max_norm / (tf.norm(x) + 1e-6)) for x in summed]
        if self.fault == "stale":
            summed, self.previous = self.previous or summed, summed
        return summed
