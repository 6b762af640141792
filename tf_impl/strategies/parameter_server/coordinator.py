"""The coordinator: it dispatches batches to the workers, and evaluates and saves what the servers hold."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from common.config.strategies import ParameterServerSettings
from common.data.batches import GlobalBatch
from common.run.context import RunContext
from common.training.dispatcher import Dispatcher
from common.training.schedule import learning_rate
from common.training.state import Saved, State
from common.training.strategy import Evaluation, StepResult
from tf_impl.batches import build_input_signature, to_tensors
from tf_impl.communication.rendezvous import Group
from tf_impl.models import build_model
from tf_impl.optimizer import Optimizer
from tf_impl.step import MicroBatch, backward, compute_evaluation_sums
from tf_impl.task import build_task_functions
from tf_impl.training_state import collect_state, load_state

SHARD_BYTES = 64 << 10  # smaller variables stay whole
SPARE = 1000  # updates that may be made twice
WEIGHT, RATE, KEY = tf.TensorSpec([], tf.float64), tf.TensorSpec([], tf.float64), tf.TensorSpec([], tf.int64)


class ParameterServer:
    """The coordinator. Workers and servers run `serve`."""

    is_chief = True

    def __init__(self, context: RunContext, group: Group) -> None:
        config = context.config
        assert isinstance(config.strategy, ParameterServerSettings)
        tf.get_logger().addFilter(_keep_first_line)
        self.config, self.settings, self.world_size = config, config.strategy, config.strategy.world_size
        servers = self.settings.server_count
        partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(SHARD_BYTES, servers)
        self.strategy = tf.distribute.ParameterServerStrategy(group.resolver, partitioner)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
        with self.strategy.scope():
            self.model = build_model(config, context.inputs.initial)
            self.task = build_task_functions(config.task)
            self.optimizer = Optimizer(config, self.model)
            self.version = tf.Variable(np.int64(0), trainable=False)  # updates so far
        updates = config.train.steps * self.settings.updates_per_batch
        with tf.device("/job:ps/task:0/device:CPU:0"):  # outside the scope, which would cut it into shards
            self.log = tf.Variable(np.zeros((updates + SPARE, 5)), trainable=False)  # a row for each update, by number
        self.first_version = 0
        batch = build_input_signature(config, context.inputs.cache.train)
        self.update_step = tf.function(self._update_step, [batch, WEIGHT, RATE, KEY])
        self.gradient_step = tf.function(self._gradient_step, [batch, WEIGHT])
        self.apply_step = tf.function(self._apply_step)
        self.evaluation_step = tf.function(self._evaluation_step, [batch])

    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        if self.settings.synchronous:
            return self._train_synchronously(batches)
        return self._train_asynchronously(batches)

    def _train_asynchronously(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        """Results are fetched in the order of the plan, by this thread alone: TensorFlow supports no more of them."""
        at_once = 4 * self.world_size  # while one worker is slow the others continue
        dispatcher = Dispatcher(batches, self.settings.updates_per_batch, at_once, self.settings.max_staleness)
        in_progress: deque[tuple[GlobalBatch, Any]] = deque()
        while True:
            while (batch := dispatcher.take()) is not None:
                in_progress.append((batch, self._schedule(batch)))
            if not in_progress:
                return
            batch, value = in_progress.popleft()
            try:
                row = value.fetch()
            except tf.errors.UnavailableError:  # its worker crashed, after the update or before it
                row = self._find_row(batch)
                if row is None:
                    in_progress.append((batch, self._schedule(batch)))
                    continue
            _, loss, grad_norm, staleness, worker = row.tolist()
            dispatcher.finish(batch)
            yield StepResult(batch, loss, grad_norm, int(staleness), int(worker))

    def _schedule(self, batch: GlobalBatch) -> Any:
        rate = learning_rate(self.config, batch.step)
        arguments = (to_tensors(batch.shard(0, 1)), batch.weight, rate, self._key(batch))
        return self.coordinator.schedule(self.update_step, arguments)

    def _key(self, batch: GlobalBatch) -> int:
        return batch.step * self.world_size + batch.part

    def _update_step(self, shard: list[MicroBatch], weight: tf.Tensor, rate: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """On a worker: read, compute, update, and leave a row in the log, which is on a server and outlives workers.

        Returns the row, float64 [the batch's key, loss, gradient norm, staleness, the worker's index]. Staleness is -1
        in the rows of updates that were begun and not ended.
        """
        read = self.version.read_value()
        with tf.control_dependencies([read]):
            loss, gradients = self._gradient_step(shard, weight)
        with tf.control_dependencies(gradients):  # fetch and add: every update has a number of its own
            number = tf.raw_ops.ResourceCountUpTo(resource=self.version.handle, limit=2**62, T=tf.int64)
        self._log(number, key, 0, 0, -1, -1)
        scalars = self.optimizer.correct_for_bias(rate, tf.cast(number + 1, tf.float64))
        grad_norm = self.optimizer.update(gradients, tf.stack(scalars))
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        return self._log(number, key, loss, grad_norm, number - read, worker)

    def _log(self, number: tf.Tensor, *values: Any) -> tf.Tensor:
        row = tf.stack([tf.cast(value, tf.float64) for value in values])
        place = tf.minimum(number - self.first_version, self.log.shape[0] - 1)
        tf.raw_ops.ResourceScatterUpdate(resource=self.log.handle, indices=place, updates=row)
        return row

    def _rows(self) -> np.ndarray:
        """The log so far."""
        rows: np.ndarray = self._when_available(lambda: self.log[: self.version - self.first_version].numpy())
        return rows

    def _when_available(self, read: Callable[[], Any]) -> Any:
        """What `read` reads from the servers: while a worker restarts, TensorFlow has no devices for a moment."""
        for _ in range(int(self.config.cluster.timeout)):
            try:
                return read()
            except (tf.errors.InvalidArgumentError, tf.errors.UnavailableError):
                time.sleep(1)
        return read()

    def _find_row(self, batch: GlobalBatch) -> np.ndarray | None:
        """The logged row of a batch's update, or None where none has ended."""
        return next((row for row in self._rows() if row[0] == self._key(batch) and row[3] >= 0), None)

    def _gradient_step(self, shard: list[MicroBatch], weight: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        loss, gradients = backward(self.model, self.task, shard, weight, self.optimizer.parameters)
        return loss, self.optimizer.densify(gradients, keep_large_sparse=not self.settings.synchronous)

    def _train_synchronously(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        """The workers' shards of one global batch make one update; the coordinator sums their gradients in order."""
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
        summed = [tf.add_n(parts) for parts in zip(*gradients, strict=True)]
        return tf.add_n(losses), self.optimizer.update(summed, scalars)

    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        summed_loss, summed_metric, weight, count, jobs = 0.0, 0.0, 0.0, 0, []
        for batch in batches:
            jobs.append(_Job(self.coordinator, self.evaluation_step, (to_tensors(batch.shard(0, 1)),)))
            weight += batch.weight
            count += batch.size
        for job in jobs:
            sums = job.fetch()
            summed_loss, summed_metric = summed_loss + float(sums[0]), summed_metric + float(sums[1])
        return Evaluation(summed_loss, summed_metric, weight, count)

    def _evaluation_step(self, shard: list[MicroBatch]) -> tf.Tensor:
        return compute_evaluation_sums(self.model, self.task, shard)

    def state(self) -> State:
        return self._when_available(lambda: collect_state(self.model, self.optimizer))

    def load(self, checkpoint: Saved) -> None:
        with self.strategy.scope():
            load_state(self.model, self.optimizer, checkpoint)
            self.version.assign(checkpoint.position.step)
        self.first_version = checkpoint.position.step

    def report(self) -> dict[str, Any]:
        return {
            "peak_memory_bytes": [
                self._when_available(partial(_peak_resident_bytes, rank)) for rank in range(self.world_size)
            ],
            "version": int(self._when_available(self.version.read_value)),
            "doubled_updates": self._doubled(),
        }

    def _doubled(self) -> list[list[int]]:
        """Batch and part of every update that was made, wholly or partly, once more than it should be.

        A worker that crashes after it began to update the variables leaves an update that it did not report; its batch
        is dispatched to another. [0, 0] stands for one that crashed before it logged what its update was of.
        """
        if self.settings.synchronous:  # the coordinator updates
            return []
        keys, counts = np.unique(self._rows()[:, 0].astype(int), return_counts=True)
        return [list(divmod(key, self.world_size)) for key in np.repeat(keys, counts - (keys > 0)).tolist()]


class _Job:
    """Something for any worker to compute, without effect on the variables: again, where its worker crashes."""

    def __init__(self, coordinator: Any, step: Any, arguments: tuple[Any, ...]) -> None:
        self._schedule = partial(coordinator.schedule, step, arguments)
        self._value = self._schedule()

    def fetch(self) -> Any:
        while True:
            try:
                return self._value.fetch()
            except tf.errors.UnavailableError:
                self._value = self._schedule()


def _keep_first_line(record: logging.LogRecord) -> bool:
    """A filter: where a worker crashes, TensorFlow logs the whole batch that it had, array by array."""
    lines = record.getMessage().splitlines() or [""]
    record.msg, record.args = lines[0], ()
    return True


def _peak_resident_bytes(worker: int) -> int:
    """What Linux measures of a worker's process; the worker itself reads it."""
    with tf.device(f"/job:worker/task:{worker}/device:CPU:0"):
        status = tf.io.read_file("/proc/self/status").numpy().decode()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))
