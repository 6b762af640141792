"""The sequential strategy in TensorFlow: its settings are in sequential.py."""

from collections.abc import Iterable, Iterator

import tensorflow as tf
from typing_extensions import override

from common.data.batches import GlobalBatch
from common.run.context import RunContext
from common.training.strategy import StepResult
from tf_impl.batches import build_input_signature, to_tensors
from tf_impl.communication.rendezvous import Group
from tf_impl.optimizer import SCALARS
from tf_impl.step import MicroBatch, backward
from tf_impl.strategies.single import Single

from .sequential import SequentialSettings


class Sequential(Single[SequentialSettings]):
    """A strategy that inherits all but the training step from `Single`."""

    def __init__(self, context: RunContext, group: Group) -> None:
        super().__init__(context, group)
        shards = [build_input_signature(self.config, context.inputs.cache.train)] * self.world_size
        self.train_step = tf.function(self._sequential_step, [shards, tf.TensorSpec([], tf.float64), SCALARS])

    @override
    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        for batch in batches:
            shards = [to_tensors(batch.shard(replica, self.world_size)) for replica in self.settings.order]
            loss, grad_norm = self.train_step(shards, batch.weight, self.optimizer.compute_scalars(batch.step))
            yield StepResult(batch, loss, grad_norm)

    def _sequential_step(
        self, shards: list[list[MicroBatch]], weight: tf.Tensor, scalars: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        losses, gradients = [], []  # one entry per replica
        for shard in shards:
            loss, gradient = backward(self.model, self.task, shard, weight, self.optimizer.parameters)
            losses.append(loss)
            gradients.append(self.optimizer.densify(gradient))
        total_gradients = [sum(shard_gradients) for shard_gradients in zip(*gradients, strict=True)]
        return sum(losses), self.optimizer.update(total_gradients, scalars)
