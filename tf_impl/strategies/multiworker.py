"""MultiWorkerMirroredStrategy: a process for each worker; each has a copy of every variable."""

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from common.cluster.agreement import must_agree
from common.config.schema import Config
from common.data.batches import GlobalBatch
from common.models.initial_weights import InitialCheckpoint
from common.run.checkpoint import Checkpoint, State
from common.training.loop import Evaluation, StepResult
from tf_impl.batches import SIGNATURES, to_tensors
from tf_impl.communication.rendezvous import join_group
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

SUM = tf.distribute.ReduceOp.SUM


class MultiWorker:
    def __init__(self, config: Config, initial: InitialCheckpoint) -> None:
        tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[:1], "GPU")
        self.devices = replica_devices(1)
        self.options = tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=config.strategy.bytes_per_pack,
            implementation=tf.distribute.experimental.CommunicationImplementation[
                config.strategy.communication.upper()
            ],
        )
        resolver = join_group(config.cluster.timeout, must_agree(config, initial))
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, self.options)
        self.world_size = self.strategy.num_replicas_in_sync
        self.rank = self._rank(resolver)
        self.is_chief = self.rank == 0
        with self.strategy.scope():
            self.model = build_model(config, initial)
            self.optimizer = Optimizer(config, self.model)
        batch = SIGNATURES[initial.hf_config["model_type"]]
        self.train_step = tf.function(self._train_step, [batch, tf.TensorSpec([], tf.int32), SCALARS])
        self.evaluation_step = tf.function(self._evaluation_step, [batch])

    @staticmethod
    def _rank(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> int:
        """Workers count from 0, after the chief where there is one."""
        has_chief = "chief" in resolver.cluster_spec().jobs
        return int(resolver.task_id) + (1 if has_chief and resolver.task_type == "worker" else 0)

    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        for batch in batches:
            shard = to_tensors(batch.shard(self.rank, self.world_size))
            loss, grad_norm = self.train_step(shard, batch.size, self.optimizer.scalars(batch.step))
            yield StepResult(batch, loss, grad_norm)

    def _train_step(
        self, shard: dict[str, tf.Tensor], size: tf.Tensor, scalars: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        def replica_step() -> tuple[tf.Tensor, tf.Tensor]:
            with tf.GradientTape() as tape:
                logits = compute_logits(self.model, shard, training=True)
                loss = summed_loss(logits, shard) / tf.cast(size, logits.dtype)
            gradients = self.optimizer.densify(tape.gradient(loss, self.optimizer.parameters))
            replica = tf.distribute.get_replica_context()
            loss, gradients = replica.all_reduce(SUM, (loss, gradients), self.options)
            return loss, self.optimizer.update(gradients, scalars)

        loss, grad_norm = self.strategy.run(replica_step)
        return loss, grad_norm

    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        sums, count = tf.zeros([2], tf.float64), 0
        for batch in batches:
            sums += self.evaluation_step(to_tensors(batch.shard(self.rank, self.world_size)))
            count += batch.size
        summed_loss, right = sums.numpy().tolist()
        return Evaluation(summed_loss, right, count)

    def _evaluation_step(self, shard: dict[str, tf.Tensor]) -> tf.Tensor:
        def replica_step() -> tf.Tensor:
            return evaluation_sums(compute_logits(self.model, shard, training=False), shard)

        return self.strategy.reduce(SUM, self.strategy.run(replica_step), axis=None)

    def state(self) -> State:
        return State(parameters_by_name(self.model), self.optimizer.slots())

    def load(self, checkpoint: Checkpoint) -> None:
        with self.strategy.scope():
            state = checkpoint.load()
            load_parameters(self.model, state.parameters)
            self.optimizer.load(state.slots, checkpoint.position)
            seed_dropout(self.model, checkpoint.position.plan_position + 1)

    def report(self) -> dict[str, Any]:
        peaks = self._summed(
            tf.one_hot(self.rank, self.world_size, peak_memory_bytes(self.devices)[0], 0, dtype=tf.int64)
        )
        return {"peak_memory_bytes": peaks.numpy().tolist()}

    @tf.function
    def _summed(self, mine: tf.Tensor) -> tf.Tensor:
        return self.strategy.reduce(SUM, self.strategy.run(tf.identity, (mine,)), axis=None)
