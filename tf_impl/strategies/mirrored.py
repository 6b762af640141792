"""MirroredStrategy: one process; every variable has a copy on each device, and gradients are all-reduced."""

from collections.abc import Iterable, Iterator

import tensorflow as tf
from typing_extensions import override

from common.config.strategies import MirroredSettings
from common.data.batches import GlobalBatch
from common.run.context import RunContext
from common.training.state import SavedState, State
from common.training.strategy import Evaluation, StepResult, Strategy
from tf_impl.batch_norm import build_statistics_averaging
from tf_impl.batches import SizedStep, build_input_signature, select_replica_shard, to_tensors
from tf_impl.changing_buffers import build_averaging, build_buffer_check, find_changing_buffers
from tf_impl.communication.mirrored_sums import SUM, sum_over_replicas
from tf_impl.communication.rendezvous import Group
from tf_impl.device import measure_peak_memory, select_replica_devices
from tf_impl.models import build_model
from tf_impl.optimizer import SCALARS, Optimizer
from tf_impl.step import MicroBatch, backward, compute_evaluation_sums, evaluate
from tf_impl.task import build_task_functions
from tf_impl.training_state import collect_state, load_state


class Mirrored(Strategy[MirroredSettings]):
    """tf.distribute.MirroredStrategy."""

    def __init__(self, context: RunContext, group: Group) -> None:
        config = context.config
        super().__init__(config, group.rank)
        self.devices, self.compiled = select_replica_devices(self.world_size, config.train.device), config.train.compile
        self.strategy = tf.distribute.MirroredStrategy(self.devices)
        with self.strategy.scope():
            self.model = build_model(config, context.inputs.initial)
            self.task = build_task_functions(config.task, context.inputs.initial.hf_config)
            self.optimizer = Optimizer(config, self.model)
        train_shards, evaluation_shards = (
            [build_input_signature(config, split, rank, self.world_size, evaluates) for rank in range(self.world_size)]
            for split, evaluates in ((context.inputs.cache.train, False), (context.inputs.cache.validation, True))
        )
        self.average_statistics = build_statistics_averaging(self.strategy, self.model)
        dependent_buffers = find_changing_buffers(self.model, dependent=True).values()
        self.average_buffers = build_averaging(self.strategy, dependent_buffers)
        self.check_equal_buffers = build_buffer_check(self.strategy, self.model)
        loss_divisor = tf.TensorSpec([], tf.float64)
        self.train_step = SizedStep(self._train_step, train_shards, loss_divisor, SCALARS)
        self.evaluation_step = tf.function(self._evaluation_step, [evaluation_shards])

    @override
    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        for batch in batches:
            scalars = self.optimizer.compute_scalars(batch.step)
            loss, grad_norm = self.train_step(self._make_shards(batch), batch.weight, scalars)
            self.average_buffers()
            yield StepResult(batch, loss, grad_norm)

    def _make_shards(self, batch: GlobalBatch) -> list[list[MicroBatch]]:
        return [to_tensors(batch.shard(replica, self.world_size), self.compiled) for replica in range(self.world_size)]

    def _train_step(
        self, shards: list[list[MicroBatch]], loss_divisor: tf.Tensor, scalars: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Make one update. loss_divisor: `GlobalBatch.weight`; scalars: see `Optimizer.compute_scalars`."""

        def replica_step() -> tuple[tf.Tensor, tf.Tensor]:
            loss, gradients = backward(
                self.model, self.task, select_replica_shard(shards), loss_divisor, self.optimizer.parameters
            )
            gradients = self.optimizer.densify(gradients, keep_large_sparse=True)
            loss, *gradients = sum_over_replicas([loss, *gradients])
            return loss, self.optimizer.update(gradients, scalars)

        per_replica = self.strategy.run(replica_step)  # every replica returns the same values
        loss, grad_norm = (self.strategy.experimental_local_results(values)[0] for values in per_replica)
        return loss, grad_norm

    @override
    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        self.average_statistics()
        self.check_equal_buffers()
        return evaluate(batches, self._compute_evaluation_sums)

    def _compute_evaluation_sums(self, batch: GlobalBatch) -> tf.Tensor:
        return self.evaluation_step(self._make_shards(batch))

    def _evaluation_step(self, shards: list[list[MicroBatch]]) -> tf.Tensor:
        def replica_step() -> tf.Tensor:
            return compute_evaluation_sums(self.model, self.task, select_replica_shard(shards))

        return self.strategy.reduce(SUM, self.strategy.run(replica_step), axis=None)

    @override
    def state(self) -> State:
        self.average_statistics()
        self.check_equal_buffers()
        return collect_state(self.model, self.optimizer)

    @override
    def load(self, checkpoint: SavedState) -> None:
        with self.strategy.scope():
            load_state(self.model, self.optimizer, checkpoint)

    @override
    def report(self) -> dict[str, object]:
        return {"peak_memory_bytes": measure_peak_memory(self.devices)}
