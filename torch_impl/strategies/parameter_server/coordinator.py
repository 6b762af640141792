"""The coordinator: it dispatches batches to the workers, and evaluates and saves what the servers hold."""

import socket
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import torch

from common.config.schema import Config
from common.config.strategies import ParameterServerSettings
from common.data.batches import GlobalBatch
from common.hardware import count_cores
from common.run.prepare import Prepared
from common.training.dispatcher import Dispatcher
from common.training.state import Saved, State
from common.training.strategy import Evaluation, StepResult
from torch_impl.batches import to_tensors
from torch_impl.communication.connection import accept, listen, receive
from torch_impl.communication.rendezvous import Group
from torch_impl.device import replica_devices
from torch_impl.models import build_model, trained
from torch_impl.models.weights import weights_by_name
from torch_impl.step import evaluate, evaluation_sums
from torch_impl.strategies.parameter_server.messages import (
    RESULT,
    SLOTS,
    UPDATE,
    connect_to_servers,
    parts_of,
    read_parameters,
    request,
    room_for,
    shards_of,
)
from torch_impl.task import build_losses


class ParameterServer:
    """The coordinator. Workers and servers run `serve`."""

    is_chief = True

    def __init__(self, config: Config, prepared: Prepared, group: Group) -> None:
        assert isinstance(config.strategy, ParameterServerSettings) and group.store is not None
        self.config, self.settings, self.world_size = config, config.strategy, config.strategy.world_size
        self.listener = listen(group.store, group.rank)
        timeout = config.cluster.timeout
        self.servers = connect_to_servers(group.store, self.settings.server_count, group.rank, timeout)
        self.workers: dict[int, socket.socket] = {}
        self.peaks: dict[int, int] = {}
        while len(self.workers) < self.world_size:
            with suppress(ConnectionError):
                self._accept_worker()
        torch.set_num_threads(count_cores())  # it computes while the workers wait
        self.device = replica_devices(1)[0]
        self.model = build_model(config, prepared.initial).to(self.device)
        self.task = build_losses(config.task)
        self.shards = shards_of(trained(self.model), len(self.servers))

    def _accept_worker(self) -> int:
        """Wait for a worker to connect, at first or again. Returns its index. Raises OSError as `accept` does."""
        rank, connection = accept(self.listener, self.config.cluster.timeout)
        worker = rank - len(self.servers) - 1
        if worker not in range(self.world_size):
            raise ConnectionError(f"rank {rank} is no worker")
        self.peaks[worker] = int(receive(connection, torch.empty(1, dtype=torch.float64)))
        self.workers[worker] = connection
        return worker

    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        if self.settings.synchronous:
            return self._train_synchronously(batches)
        return self._train_asynchronously(batches)

    def _train_asynchronously(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        """The batches of a worker that crashes go to others; the servers know which of them have been applied."""
        at_once = 2 * self.world_size  # the next batch waits where the worker is: none idles
        dispatcher = Dispatcher(batches, self.settings.updates_per_batch, at_once, self.settings.max_staleness)
        given: dict[int, deque[GlobalBatch]] = {worker: deque() for worker in self.workers}  # in order of their results
        again: deque[GlobalBatch] = deque()
        while True:
            while given and (batch := again.popleft() if again else dispatcher.take()) is not None:
                worker = min(given, key=lambda each: len(given[each]))
                given[worker].append(batch)
                with suppress(OSError):  # it has crashed; handled below
                    request(self.workers[worker], UPDATE, batch.step, batch.part)
            if given and not dispatcher.in_progress:
                return
            ready = wait([self.listener, *self.workers.values()], self.config.cluster.timeout)
            if not ready:
                raise TimeoutError(f"cluster.timeout={self.config.cluster.timeout:g}: no worker has answered in time")
            for worker in [each for each, connection in self.workers.items() if connection in ready]:
                try:
                    result = self._result(worker)
                except OSError:
                    again += given.pop(worker)
                    del self.workers[worker]
                    continue
                batch = given[worker].popleft()
                dispatcher.finish(batch)
                loss, grad_norm, staleness, by = result
                yield StepResult(batch, loss, grad_norm, int(staleness), int(by))
            if self.listener in ready:
                with suppress(OSError):
                    worker = self._accept_worker()
                    again += given.pop(worker, ())
                    given[worker] = deque()

    def _result(self, worker: int) -> list[float]:
        """The row of the update that a worker has made."""
        *row, peak = receive(self.workers[worker], torch.empty(RESULT, dtype=torch.float64)).tolist()
        self.peaks[worker] = int(peak)
        return row

    def _train_synchronously(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        """The workers' shards of one global batch make one update; each server sums their gradients in order."""
        for batch in batches:
            for worker in range(self.world_size):
                request(self.workers[worker], UPDATE, batch.step, worker)
            losses, norms, *_ = np.transpose([self._result(worker) for worker in range(self.world_size)])
            yield StepResult(batch, losses.sum(), norms[0], staleness=0)

    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        read_parameters(self.servers, self.shards)
        self.model.eval()
        return evaluate(batches, self._evaluation_sums)

    def _evaluation_sums(self, batch: GlobalBatch) -> torch.Tensor:
        shard = to_tensors(batch.shard(0, 1), self.device)
        return evaluation_sums(self.model, self.task, shard, self.config.train.precision)

    def state(self) -> State:
        read_parameters(self.servers, self.shards)
        slots: dict[str, np.ndarray] = {}
        for server, shard in zip(self.servers, self.shards, strict=True):
            request(server, SLOTS)
            for slot in self.config.optimizer.slots:
                parts = parts_of(receive(server, room_for(shard.values())), shard.values())
                slots |= {f"{slot}.{name}": part.numpy() for name, part in zip(shard, parts, strict=True)}
        return State(weights_by_name(self.model), slots)

    def load(self, checkpoint: Saved) -> None:
        """Nothing to do: the servers have loaded it."""

    def report(self) -> dict[str, Any]:
        peaks = [self.peaks[worker] for worker in range(self.world_size)]
        return {"peak_memory_bytes": peaks, "version": read_parameters(self.servers, self.shards)}
