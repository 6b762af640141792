"""The coordinator, which dispatches batches to the workers, and evaluates and saves the variables of the servers.

In an asynchronous run each worker updates the variables by itself. In a synchronous run the coordinator sums the
gradients of all workers and makes the update.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import tensorflow as tf
from typing_extensions import override

from common.config.strategies import ParameterServerSettings
from common.data.batches import GlobalBatch
from common.metrics.predictions import collect_predictions
from common.run.context import RunContext
from common.training.dispatcher import Dispatcher
from common.training.schedule import compute_learning_rate
from common.training.state import SavedState, State
from common.training.strategy import Evaluation, StepResult, Strategy
from tf_impl.batches import build_input_signature, to_tensors
from tf_impl.communication.rendezvous import Group
from tf_impl.models import build_model
from tf_impl.optimizer import Optimizer
from tf_impl.step import MicroBatch, backward, compute_evaluation_sums
from tf_impl.strategies.parameter_server.update_log import UpdateLog, UpdateRow
from tf_impl.task import build_task_functions
from tf_impl.training_state import collect_state, load_state

SHARD_BYTES = 64 << 10  # smaller variables are not divided over the servers
# Types of the arguments of compiled steps: the divisor of the losses, a learning rate, the key of a batch in the log.
LOSS_DIVISOR, RATE, KEY = tf.TensorSpec([], tf.float64), tf.TensorSpec([], tf.float64), tf.TensorSpec([], tf.int64)

ClusterCoordinator: TypeAlias = tf.distribute.coordinator.ClusterCoordinator
RemoteValue: TypeAlias = tf.distribute.coordinator.RemoteValue
PolymorphicFunction: TypeAlias = tf.types.experimental.PolymorphicFunction
T = TypeVar("T")


class ParameterServer(Strategy[ParameterServerSettings]):
    """The coordinator, which is the chief. Workers and servers run `serve`."""

    def __init__(self, context: RunContext, group: Group) -> None:
        config = context.config
        super().__init__(config, group.rank)
        tf.get_logger().addFilter(_keep_first_line)
        servers = self.settings.server_count
        partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(SHARD_BYTES, servers)
        self.strategy = tf.distribute.ParameterServerStrategy(group.resolver, partitioner)
        self.coordinator = ClusterCoordinator(self.strategy)
        with self.strategy.scope():
            self.model = build_model(config, context.inputs.initial)
            self.task = build_task_functions(config.task, context.inputs.initial.hf_config)
            self.optimizer = Optimizer(config, self.model)
            self.version = tf.Variable(np.int64(0), trainable=False)  # number of updates so far
        self.log = UpdateLog(config.train.steps * self.settings.updates_per_batch, self.world_size)
        shard = build_input_signature(config, context.inputs.cache.train)
        self.update_step = tf.function(self._update_step, [shard, LOSS_DIVISOR, RATE, KEY])
        self.gradient_step = tf.function(self._gradient_step, [shard, LOSS_DIVISOR])
        self.apply_step = tf.function(self._apply_step)
        evaluation_shard = build_input_signature(config, context.inputs.cache.validation, evaluates=True)
        self.evaluation_step = tf.function(self._evaluation_step, [evaluation_shard])

    @override
    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        if self.settings.synchronous:
            return self._train_synchronously(batches)
        return self._train_asynchronously(batches)

    def _train_asynchronously(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        """Schedule the batches and yield their updates in the order of the batches.

        The dispatcher divides each global batch into parts, one for each update; a part is a GlobalBatch, too. Only
        this thread fetches results: TensorFlow does not support fetching in several threads.
        """
        max_in_progress = 4 * self.world_size  # lets the other workers continue while one worker is slow
        dispatcher = Dispatcher(batches, self.settings.updates_per_batch, max_in_progress, self.settings.max_staleness)
        in_progress: deque[tuple[GlobalBatch, RemoteValue]] = deque()
        while True:
            while (batch := dispatcher.take()) is not None:
                in_progress.append((batch, self._schedule(batch)))
            if not in_progress:
                return
            batch, value = in_progress.popleft()
            row: UpdateRow | None
            try:
                row = UpdateRow(*value.fetch().tolist())
            except tf.errors.UnavailableError:  # the worker has crashed, before or after its update
                row = self._find_row(batch)
                if row is None:
                    in_progress.append((batch, self._schedule(batch)))
                    continue
            dispatcher.finish(batch)
            yield StepResult(batch, row.loss, row.grad_norm, int(row.staleness), int(row.worker))

    def _schedule(self, batch: GlobalBatch) -> RemoteValue:
        rate = compute_learning_rate(self.config, batch.step) * self.optimizer.plateau_factor
        shard = to_tensors(batch.shard(rank=0, world_size=1))
        arguments = (shard, batch.weight, rate, self.log.key_of(batch))
        return self.coordinator.schedule(self.update_step, arguments)

    def _update_step(
        self, shard: list[MicroBatch], loss_divisor: tf.Tensor, rate: tf.Tensor, key: tf.Tensor
    ) -> tf.Tensor:
        """Read the variables, compute the gradients and update the variables. This runs on a worker.

        The worker writes to the log before and after the update, so that an update that a crash interrupts can be seen.

        Returns:
            The row of the update, float64 [fields of UpdateRow], which is also in the log.
        """
        version_read = self.version.read_value()
        with tf.control_dependencies([version_read]):
            loss, gradients = self._gradient_step(shard, loss_divisor)
        # `number` is the number of earlier updates. The operation reads the version and adds 1 to it at once, so no two
        # updates get the same number.
        with tf.control_dependencies(gradients):
            number = tf.raw_ops.ResourceCountUpTo(resource=self.version.handle, limit=2**62, T=tf.int64)
        self.log.write(number, UpdateRow(key, loss=0, grad_norm=0, staleness=-1, worker=-1))
        scalars = self.optimizer.correct_for_bias(rate, tf.cast(number + 1, tf.float64))
        grad_norm = self.optimizer.update(gradients, tf.stack(scalars))
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        return self.log.write(number, UpdateRow(key, tf.reduce_sum(loss), grad_norm, number - version_read, worker))

    def _read_log(self) -> list[UpdateRow]:
        return self._retry_reading(lambda: list(self.log.read(self.version)))

    def _find_row(self, batch: GlobalBatch) -> UpdateRow | None:
        """Return the row of the finished update of a batch, or None."""
        key = self.log.key_of(batch)
        return next((row for row in self._read_log() if row.key == key and row.staleness >= 0), None)

    def _retry_reading(self, read: Callable[[], T]) -> T:
        """Call `read`. Retry it every second while a worker restarts: TensorFlow lacks its devices for a moment."""
        for _ in range(int(self.config.cluster.timeout)):
            try:
                return read()
            except (tf.errors.InvalidArgumentError, tf.errors.UnavailableError):
                time.sleep(1)
        return read()

    def _gradient_step(self, shard: list[MicroBatch], loss_divisor: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        loss, gradients = backward(self.model, self.task, shard, loss_divisor, self.optimizer.parameters)
        # The coordinator of a synchronous run can only add dense gradients.
        return loss, self.optimizer.densify(gradients, keep_large_sparse=not self.settings.synchronous)

    def _train_synchronously(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        """Make one update from each global batch: the coordinator sums the gradients in the order of the workers."""
        for batch in batches:
            shards = [to_tensors(batch.shard(rank, self.world_size)) for rank in range(self.world_size)]
            jobs = [_Job(self.coordinator, self.gradient_step, (shard, batch.weight)) for shard in shards]
            losses, gradients = zip(*(job.fetch() for job in jobs), strict=True)
            loss, grad_norm = self.apply_step(losses, gradients, self.optimizer.compute_scalars(batch.step))
            yield StepResult(batch, loss, grad_norm, staleness=0)

    def _apply_step(
        self, losses: tuple[tf.Tensor, ...], gradients: tuple[list[tf.Tensor], ...], scalars: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        self.version.assign_add(1)
        summed = [tf.add_n(worker_gradients) for worker_gradients in zip(*gradients, strict=True)]
        return tf.add_n(losses), self.optimizer.update(summed, scalars)

    @override
    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        weight: float | np.ndarray = 0.0
        sums, count, jobs = np.zeros(()), 0, []
        gathered: list[tuple[GlobalBatch, np.ndarray]] = []
        for batch in batches:
            shard = to_tensors(batch.shard(rank=0, world_size=1))
            jobs.append((batch, _Job(self.coordinator, self.evaluation_step, (shard,))))
            weight = weight + batch.evaluation_weight
            count += batch.size
        for batch, job in jobs:
            batch_sums, size = np.asarray(job.fetch()), 2 * np.size(batch.evaluation_weight)
            sums = sums + batch_sums[:size]
            if batch.predictions:
                gathered.append((batch, batch_sums[size:]))
        summed_loss, summed_metric = sums.reshape(2, *np.shape(weight))
        return Evaluation(summed_loss, summed_metric, weight, count, collect_predictions(gathered))

    def _evaluation_step(self, shard: list[MicroBatch]) -> tf.Tensor:
        return compute_evaluation_sums(self.model, self.task, shard)

    @override
    def state(self) -> State:
        return self._retry_reading(lambda: collect_state(self.model, self.optimizer))

    @override
    def load(self, checkpoint: SavedState) -> None:
        with self.strategy.scope():
            load_state(self.model, self.optimizer, checkpoint)
            self.version.assign(checkpoint.position.step)
        self.log.first_version = checkpoint.position.step

    @override
    def report(self) -> dict[str, object]:
        return {
            "peak_memory_bytes": [
                self._retry_reading(partial(_measure_peak_resident_bytes, rank)) for rank in range(self.world_size)
            ],
            "version": int(self._retry_reading(self.version.read_value)),
            # In an asynchronous run the workers make the updates, so an update may be repeated after a crash.
            "doubled_updates": [] if self.settings.synchronous else self.log.find_repeated(self._read_log()),
        }


class _Job:
    """A computation on any worker that leaves the variables unchanged, so that it can be repeated after a crash."""

    def __init__(
        self, coordinator: ClusterCoordinator, step: PolymorphicFunction, arguments: tuple[object, ...]
    ) -> None:
        self._schedule = partial(coordinator.schedule, step, arguments)
        self._value = self._schedule()

    def fetch(self) -> Any:  # noqa: ANN401  tensors, nested as the step returns them
        """Wait for the result and return it. Schedule the step again if its worker has crashed."""
        while True:
            try:
                return self._value.fetch()
            except tf.errors.UnavailableError:
                self._value = self._schedule()


def _keep_first_line(record: logging.LogRecord) -> bool:
    """Shorten a log record to one line. TensorFlow logs all arrays of the batch when a worker crashes."""
    lines = record.getMessage().splitlines() or [""]
    record.msg, record.args = lines[0], ()
    return True


def _measure_peak_resident_bytes(worker: int) -> int:
    """Return the peak memory of the process of a worker. The worker reads the file, so it sees its own process."""
    with tf.device(f"/job:worker/task:{worker}/device:CPU:0"):
        status = tf.io.read_file("/proc/self/status").numpy().decode()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))
