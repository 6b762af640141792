"""CentralStorageStrategy: one process; replicas on several devices read the variables from one device every step.

That device, the CPU, sums the gradients of the replicas and makes one update.
"""

from collections.abc import Iterable, Iterator

import tensorflow as tf
from typing_extensions import override

from common.config.strategies import CentralStorageSettings
from common.data.batches import GlobalBatch
from common.run.context import RunContext
from common.training.state import SavedState, State
from common.training.strategy import Evaluation, StepResult, Strategy
from tf_impl.batches import SizedStep, build_input_signature, select_replica_shard, to_tensors
from tf_impl.communication.rendezvous import Group
from tf_impl.device import measure_peak_memory, select_replica_devices
from tf_impl.models import build_model
from tf_impl.optimizer import SCALARS, Optimizer
from tf_impl.step import MicroBatch, backward, compute_evaluation_sums, evaluate
from tf_impl.task import build_task_functions
from tf_impl.training_state import collect_state, load_state

SUM = tf.distribute.ReduceOp.SUM


class CentralStorage(Strategy[CentralStorageSettings]):
    """tf.distribute.experimental.CentralStorageStrategy."""

    def __init__(self, context: RunContext, group: Group) -> None:
        config = context.config
        super().__init__(config, group.rank)
        self.devices = select_replica_devices(self.world_size, config.train.device)
        self.strategy = tf.distribute.experimental.CentralStorageStrategy(self.devices, "/CPU:0")
        with self.strategy.scope():
            self.model = build_model(config, context.inputs.initial)
            self.task = build_task_functions(config.task, context.inputs.initial.hf_config)
            self.optimizer = Optimizer(config, self.model)
        train_shards, evaluation_shards = (
            [build_input_signature(config, split, rank, self.world_size, evaluates) for rank in range(self.world_size)]
            for split, evaluates in ((context.inputs.cache.train, False), (context.inputs.cache.validation, True))
        )
        loss_divisor = tf.TensorSpec([], tf.float64)
        self.train_step = SizedStep(self._train_step, train_shards, loss_divisor, SCALARS)
        self.evaluation_step = tf.function(self._evaluation_step, [evaluation_shards])

    @override
    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        for batch in batches:
            scalars = self.optimizer.compute_scalars(batch.step)
            loss, grad_norm = self.train_step(self._make_shards(batch), batch.weight, scalars)
            yield StepResult(batch, loss, grad_norm)

    def _make_shards(self, batch: GlobalBatch) -> list[list[MicroBatch]]:
        return [to_tensors(batch.shard(replica, self.world_size)) for replica in range(self.world_size)]

    def _train_step(
        self, shards: list[list[MicroBatch]], loss_divisor: tf.Tensor, scalars: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Make one update. loss_divisor: `GlobalBatch.weight`; scalars: see `Optimizer.compute_scalars`."""

        def replica_step() -> tuple[tf.Tensor, list[tf.Tensor]]:
            loss, gradients = backward(
                self.model, self.task, select_replica_shard(shards), loss_divisor, self.optimizer.parameters
            )
            return loss, self.optimizer.densify(gradients)

        loss, gradients = self.strategy.run(replica_step)
        loss, gradients = (
            self.strategy.reduce(SUM, loss, None),
            [self.strategy.reduce(SUM, gradient, None) for gradient in gradients],
        )
        with tf.device("/CPU:0"):  # the only update, on the device of the variables
            return loss, self.optimizer.update(gradients, scalars)

    @override
    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        return evaluate(batches, self._compute_evaluation_sums)

    def _compute_evaluation_sums(self, batch: GlobalBatch) -> tf.Tensor:
        return self.evaluation_step(self._make_shards(batch))

    def _evaluation_step(self, shards: list[list[MicroBatch]]) -> tf.Tensor:
        def replica_step() -> tf.Tensor:
            return compute_evaluation_sums(self.model, self.task, select_replica_shard(shards))

        return self.strategy.reduce(SUM, self.strategy.run(replica_step), axis=None)

    @override
    def state(self) -> State:
        return collect_state(self.model, self.optimizer)

    @override
    def load(self, checkpoint: SavedState) -> None:
        with self.strategy.scope():
            load_state(self.model, self.optimizer, checkpoint)

    @override
    def report(self) -> dict[str, object]:
        return {"peak_memory_bytes": measure_peak_memory(self.devices)}
