"""One replica on one device: what every other strategy must equal."""

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from common.config.schema import Config
from common.data.batches import GlobalBatch
from common.models.initial_weights import InitialCheckpoint
from common.run.checkpoint import Checkpoint, State
from common.training.loop import Evaluation, StepResult
from tf_impl.batches import SIGNATURES, to_tensors
from tf_impl.device import peak_memory_bytes, replica_devices
from tf_impl.optimizer import SCALARS, Optimizer
from tf_impl.step import (
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
        self.devices = replica_devices(1)
        self.model = build_model(config, initial)
        self.optimizer = Optimizer(config, self.model)
        batch = SIGNATURES[initial.hf_config["model_type"]]
        self.train_step = tf.function(self._train_step, [batch, tf.TensorSpec([], tf.int32), SCALARS])
        self.evaluation_step = tf.function(self._evaluation_step, [batch])

    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        for batch in batches:
            shard = to_tensors(batch.shard(0, 1))
            loss, grad_norm = self.train_step(shard, batch.size, self.optimizer.scalars(batch.step))
            yield StepResult(batch, loss, grad_norm)

    def _train_step(
        self, shard: dict[str, tf.Tensor], size: tf.Tensor, scalars: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = compute_logits(self.model, shard, training=True)
            loss = summed_loss(logits, shard) / tf.cast(size, logits.dtype)
        gradients = self.optimizer.densify(tape.gradient(loss, self.optimizer.parameters))
        return loss, self.optimizer.update(gradients, scalars)

    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        sums, count = tf.zeros([2], tf.float64), 0
        for batch in batches:
            sums += self.evaluation_step(to_tensors(batch.shard(0, 1)))
            count += batch.size
        summed_loss, right = sums.numpy().tolist()
        return Evaluation(summed_loss, right, count)

    def _evaluation_step(self, shard: dict[str, tf.Tensor]) -> tf.Tensor:
        return evaluation_sums(compute_logits(self.model, shard, training=False), shard)

    def state(self) -> State:
        return State(parameters_by_name(self.model), self.optimizer.slots())

    def load(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.load()
        load_parameters(self.model, state.parameters)
        self.optimizer.load(state.slots, checkpoint.position)
        seed_dropout(self.model, checkpoint.position.plan_position + 1)

    def report(self) -> dict[str, Any]:
        return {"peak_memory_bytes": peak_memory_bytes(self.devices)}
