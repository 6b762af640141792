"""MultiWorkerMirroredStrategy: a process, called worker, for each replica; the workers all-reduce the gradients."""

from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf
from typing_extensions import override

from common.config.strategies import MultiWorkerSettings
from common.data.batches import GlobalBatch
from common.run.context import RunContext
from common.training.state import SavedState, State
from common.training.stop import preserve_handlers
from common.training.strategy import Evaluation, StepResult, Strategy
from tf_impl.batch_norm import build_statistics_averaging
from tf_impl.batches import SizedStep, build_input_signature, to_tensors
from tf_impl.changing_buffers import build_averaging, build_buffer_check, find_changing_buffers
from tf_impl.communication.rendezvous import Group
from tf_impl.device import measure_peak_memory, select_replica_devices
from tf_impl.models import build_model
from tf_impl.optimizer import SCALARS, Optimizer
from tf_impl.step import MicroBatch, backward, compute_evaluation_sums, evaluate
from tf_impl.task import build_task_functions
from tf_impl.training_state import collect_state, load_state

SUM = tf.distribute.ReduceOp.SUM


class MultiWorker(Strategy[MultiWorkerSettings]):
    """tf.distribute.MultiWorkerMirroredStrategy."""

    def __init__(self, context: RunContext, group: Group) -> None:
        config = context.config
        super().__init__(config, group.rank)
        tf.config.set_visible_devices(tf.config.list_physical_devices("GPU")[:1], "GPU")  # one replica for each process
        self.devices, self.compiled = select_replica_devices(1, config.train.device), config.train.compile
        implementation = self.settings.communication.upper()
        self.options = tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=self.settings.bytes_per_pack,
            implementation=tf.distribute.experimental.CommunicationImplementation[implementation],
        )
        with preserve_handlers():  # TensorFlow's own signal handler would lose a SIGTERM while the model is built
            self.strategy = tf.distribute.MultiWorkerMirroredStrategy(group.resolver, self.options)
        with self.strategy.scope():
            self.model = build_model(config, context.inputs.initial)
            self.task = build_task_functions(config.task, context.inputs.initial.hf_config)
            self.optimizer = Optimizer(config, self.model)
        train_shard, evaluation_shard = (
            build_input_signature(config, split, self.rank, self.world_size, evaluates)
            for split, evaluates in ((context.inputs.cache.train, False), (context.inputs.cache.validation, True))
        )
        self.average_statistics = build_statistics_averaging(self.strategy, self.model)
        dependent_buffers = find_changing_buffers(self.model, dependent=True).values()
        self.average_buffers = build_averaging(self.strategy, dependent_buffers)
        self.check_equal_buffers = build_buffer_check(self.strategy, self.model)
        loss_divisor = tf.TensorSpec([], tf.float64)
        self.train_step = SizedStep(self._train_step, train_shard, loss_divisor, SCALARS)
        self.evaluation_step = tf.function(self._evaluation_step, [evaluation_shard])

    @override
    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        for batch in batches:
            shard = to_tensors(batch.shard(self.rank, self.world_size), self.compiled)
            loss, grad_norm = self.train_step(shard, batch.weight, self.optimizer.compute_scalars(batch.step))
            self.average_buffers()
            yield StepResult(batch, loss, grad_norm)

    def _train_step(
        self, shard: list[MicroBatch], loss_divisor: tf.Tensor, scalars: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Make one update. loss_divisor: `GlobalBatch.weight`; scalars: see `Optimizer.compute_scalars`."""

        def replica_step() -> tuple[tf.Tensor, tf.Tensor]:
            loss, gradients = backward(self.model, self.task, shard, loss_divisor, self.optimizer.parameters)
            gradients = self.optimizer.densify(gradients, keep_large_sparse=True)
            replica = tf.distribute.get_replica_context()
            loss, gradients = replica.all_reduce(SUM, (loss, gradients), self.options)
            return loss, self.optimizer.update(gradients, scalars)

        loss, grad_norm = self.strategy.run(replica_step)
        return loss, grad_norm

    @override
    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        self.average_statistics()
        self.check_equal_buffers()
        return evaluate(batches, self._compute_evaluation_sums)

    def _compute_evaluation_sums(self, batch: GlobalBatch) -> tf.Tensor:
        return self.evaluation_step(to_tensors(batch.shard(self.rank, self.world_size), self.compiled))

    def _evaluation_step(self, shard: list[MicroBatch]) -> tf.Tensor:
        def replica_step() -> tf.Tensor:
            return compute_evaluation_sums(self.model, self.task, shard)

        return self.strategy.reduce(SUM, self.strategy.run(replica_step), axis=None)

    @override
    def share(self, values: np.ndarray) -> np.ndarray:
        term = values if self.is_chief else np.zeros_like(values)  # the sum over the workers is the chief's values
        return self._sum_over_workers(tf.constant(term)).numpy()

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
        peaks = self._sum_over_workers(  # every worker adds its peak at its index, and 0 elsewhere
            tf.one_hot(self.rank, self.world_size, measure_peak_memory(self.devices)[0], 0, dtype=tf.int64)
        )
        return {"peak_memory_bytes": peaks.numpy().tolist()}

    @tf.function
    def _sum_over_workers(self, value: tf.Tensor) -> tf.Tensor:
        return self.strategy.reduce(SUM, self.strategy.run(tf.identity, (value,)), axis=None)
