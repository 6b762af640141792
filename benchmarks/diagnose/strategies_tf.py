"""One process computes the gradients of the replicas one after the other, and makes a mistake."""

from collections.abc import Iterable, Iterator

import tensorflow as tf
from typing_extensions import override

from benchmarks.diagnose.strategies import FaultyStrategySettings, shard_of
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
    def __init__(self, context: RunContext, group: Group) -> None:
        super().__init__(context, group)
        self.fault = self.settings.fault
        self.last: Gradients | None = None

    @override
    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        for batch in batches:
            losses, shards, sizes = [], [], []
            for rank in range(self.world_size):
                shard = shard_of(batch, rank, self.config, self.fault)
                sizes.append(sum(float(part["weights"].sum()) for part in shard) / batch.weight)
                loss, gradients = backward(
                    self.model, self.task, to_tensors(shard), tf.constant(batch.weight), self.optimizer.parameters
                )
                losses.append(loss)
                shards.append([tf.convert_to_tensor(each) for each in gradients])
            scalars = self.optimizer.compute_scalars(batch.step)
            if self.fault == "schedule_late":
                rate = compute_learning_rate(self.config, batch.step - 1) if batch.step > 1 else 0.0
                scalars = tf.constant(self.optimizer.correct_for_bias(rate, batch.step), tf.float64)
            norm = self.optimizer.update(self.reduce(shards, sizes), scalars)
            yield StepResult(batch, tf.add_n(losses), norm)

    def reduce(self, shards: list[Gradients], share: list[float]) -> Gradients:
        count = len(shards)
        if self.fault == "mean_of_means":
            shards = [[each / part / count for each in shard] for shard, part in zip(shards, share, strict=True)]
        if self.fault == "missing":
            shards = shards[:-1]
        if self.fault == "bfloat16":
            shards = [[tf.cast(tf.cast(each, tf.bfloat16), each.dtype) for each in shard] for shard in shards]
        summed = [tf.add_n(parts) for parts in zip(*shards, strict=True)]
        if self.fault == "averaged_twice":
            summed = [each / count for each in summed]
        if self.fault == "not_averaged":
            summed = [each * count for each in summed]
        if self.fault == "clip_per_variable":
            largest = self.config.optimizer.max_grad_norm or 1.0
            summed = [each * tf.minimum(tf.cast(1, each.dtype), largest / (tf.norm(each) + 1e-6)) for each in summed]
        if self.fault == "stale":
            summed, self.last = self.last or summed, summed
        return summed
