"""The coordinator, which dispatches batches to the workers, and evaluates and saves the parameters of the servers."""

import socket
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
import torch
from typing_extensions import override

from common.config.strategies import ParameterServerSettings
from common.data.batches import GlobalBatch
from common.errors import PeerTimeout
from common.hardware import count_cores
from common.run.context import RunContext
from common.training.dispatcher import Dispatcher
from common.training.state import SavedState, State
from common.training.strategy import Evaluation, StepResult, Strategy
from torch_impl.batches import to_tensors
from torch_impl.communication.connection import RankListener
from torch_impl.communication.rendezvous import Group
from torch_impl.device import select_replica_devices
from torch_impl.models import build_model, trainable_parameters
from torch_impl.models.weights import read_weights
from torch_impl.step import compute_evaluation_sums, evaluate
from torch_impl.strategies.parameter_server.messages import (
    ComputeGradient,
    SetPlateauFactor,
    WorkerJoined,
    WorkerResult,
    receive_message,
    send_message,
)
from torch_impl.strategies.parameter_server.shards import (
    assign_to_servers,
    connect_to_servers,
    load_averages,
    read_parameters,
    read_slots,
)
from torch_impl.task import build_task_functions


class ParameterServer(Strategy[ParameterServerSettings]):
    """The coordinator, which is the chief. Workers and servers run `serve`."""

    def __init__(self, context: RunContext, group: Group) -> None:
        config = context.config
        super().__init__(config, group.rank)
        assert group.store is not None
        timeout = config.cluster.timeout
        self.listener = RankListener(group.store, group.rank, timeout)
        self.servers = connect_to_servers(group.store, self.settings.server_count, group.rank, timeout)
        self.workers: dict[int, socket.socket] = {}  # connections by the worker's index
        self.peaks: dict[int, int] = {}  # peak memory in bytes by the worker's index
        self.reads_averages = False  # whether `evaluate` reads the averages of the weights from the servers
        while missing := [index for index in range(self.world_size) if index not in self.workers]:
            _, arrivals = self.listener.wait([], timeout)
            if not arrivals:
                names = ", ".join(f"worker {index}" for index in missing)
                raise PeerTimeout(f"cluster.timeout={timeout:g}: {names} did not connect in time")
            for rank, connection in arrivals:
                with suppress(OSError):  # the worker has crashed meanwhile
                    self._add_worker(rank, connection)
        torch.set_num_threads(count_cores())  # the coordinator evaluates while the workers wait
        self.device = select_replica_devices(1, config.train.device)[0]
        self.model = build_model(config, context.inputs.initial).to(self.device)
        self.task = build_task_functions(config.task, context.inputs.initial.hf_config)
        self.shards = assign_to_servers(trainable_parameters(self.model), len(self.servers))

    def _add_worker(self, rank: int, connection: socket.socket) -> int:
        """Add a worker that has connected, for the first time or after a restart. Return its index.

        Raises:
            OSError: the connection is broken.
        """
        worker = rank - self.settings.other_processes  # the coordinator and the servers have the lower ranks
        self.peaks[worker] = receive_message(connection, WorkerJoined).peak_memory_bytes
        self.workers[worker] = connection
        return worker

    @override
    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        if self.settings.synchronous:
            return self._train_synchronously(batches)
        return self._train_asynchronously(batches)

    def _train_asynchronously(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        """Dispatch the batches and yield their updates in the order in which the workers report them.

        The dispatcher divides each global batch into parts, one for each update; a part is a GlobalBatch, too. If a
        worker crashes, its batches go to other workers. The servers know which of these batches they have applied.
        """
        max_in_progress = 2 * self.world_size  # a worker already has its next batch when it finishes one
        dispatcher = Dispatcher(batches, self.settings.updates_per_batch, max_in_progress, self.settings.max_staleness)
        queues: dict[int, deque[GlobalBatch]] = {worker: deque() for worker in self.workers}  # in order of dispatch
        orphans: deque[GlobalBatch] = deque()  # batches of workers that have crashed
        while True:
            while queues and (batch := orphans.popleft() if orphans else dispatcher.take()) is not None:
                worker = min(queues, key=lambda worker: len(queues[worker]))
                queues[worker].append(batch)
                with suppress(OSError):  # the worker has crashed; receiving its result fails below, which handles it
                    send_message(self.workers[worker], ComputeGradient(batch.step, batch.part))
            if queues and not dispatcher.in_progress:  # without a worker left, wait for one to restart
                return
            readable, arrivals = self.listener.wait(self.workers.values(), self.config.cluster.timeout)
            if not readable and not arrivals:
                raise TimeoutError(f"cluster.timeout={self.config.cluster.timeout:g}: no worker has answered in time")
            for worker in [worker for worker, connection in self.workers.items() if connection in readable]:
                try:
                    result = self._receive_result(worker)
                except OSError:
                    orphans += queues.pop(worker)
                    del self.workers[worker]
                    continue
                batch = queues[worker].popleft()
                dispatcher.finish(batch)
                yield StepResult(batch, result.loss, result.grad_norm, result.staleness, result.worker)
            for rank, connection in arrivals:
                with suppress(OSError):
                    worker = self._add_worker(rank, connection)
                    orphans += queues.pop(worker, ())  # a worker may return before its crash was noticed
                    queues[worker] = deque()

    def _receive_result(self, worker: int) -> WorkerResult:
        result = receive_message(self.workers[worker], WorkerResult)
        self.peaks[worker] = result.peak_memory_bytes
        return result

    def _train_synchronously(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        """Make one update from each global batch: each server sums its gradients in the order of the workers."""
        for batch in batches:
            for worker in range(self.world_size):
                send_message(self.workers[worker], ComputeGradient(batch.step, part=worker))
            results = [self._receive_result(worker) for worker in range(self.world_size)]
            loss = np.sum([result.loss for result in results])
            yield StepResult(batch, loss, results[0].grad_norm, staleness=0)

    @override
    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        read_parameters(self.servers, self.shards)
        if self.reads_averages:
            load_averages(self.shards, self._read_slots())
        self.model.eval()
        return evaluate(batches, self._compute_evaluation_sums)

    def _compute_evaluation_sums(self, batch: GlobalBatch) -> torch.Tensor:
        shard = to_tensors(batch.shard(rank=0, world_size=1), self.device)
        return compute_evaluation_sums(self.model, self.task, shard, self.config.train.precision)

    @override
    def state(self) -> State:
        read_parameters(self.servers, self.shards)
        return State(read_weights(self.model), self._read_slots())

    def _read_slots(self) -> dict[str, np.ndarray]:
        slots: dict[str, np.ndarray] = {}
        for server, shard in zip(self.servers, self.shards, strict=True):
            slots |= read_slots(server, shard, self.config)
        return slots

    @override
    def load(self, checkpoint: SavedState) -> None:
        """Do nothing: the servers have loaded the checkpoint themselves."""

    @override
    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        self.reads_averages = True
        try:
            yield
        finally:
            self.reads_averages = False

    @override
    def set_plateau_factor(self, factor: float) -> None:
        for server in self.servers:
            send_message(server, SetPlateauFactor(factor))
        for server in self.servers:  # no worker may send a gradient to a server that does not know the factor yet
            receive_message(server, SetPlateauFactor)

    @override
    def report(self) -> dict[str, object]:
        peaks = [self.peaks[worker] for worker in range(self.world_size)]
        return {"peak_memory_bytes": peaks, "version": read_parameters(self.servers, self.shards)}
