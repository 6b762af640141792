"""Parameter servers by hand, on TCP connections.

The servers hold the parameters; a coordinator hands out batches to workers, which read the parameters, compute
gradients and send them to be applied, without waiting for each other. Rank 0 is the coordinator, then come the servers,
then the workers. A worker that falls is waited for by nobody, and one that takes its place is welcome: no process group
could do that. torch.distributed.rpc would be the other way; PyTorch keeps it, and TensorPipe, its only transport, in
maintenance mode.
"""

import atexit
import socket
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import Parameter
from torch.nn.utils import get_total_norm

from common.cluster.agreement import must_agree
from common.config.schema import Config
from common.data.batches import GlobalBatch, Split
from common.hardware import cores
from common.models.initial_weights import InitialCheckpoint
from common.run.checkpoint import Checkpoint, State, slot_names
from common.run.resume import find_start
from common.training.dispatcher import HandOut, find_batch
from common.training.loop import Evaluation, StepResult
from torch_impl.batches import to_tensors
from torch_impl.communication.connection import accept, connect, listen, receive, send
from torch_impl.communication.rendezvous import meet
from torch_impl.device import peak_memory_bytes, replica_devices
from torch_impl.optimizer import Optimizer
from torch_impl.step import (
    build_model,
    compute_logits,
    evaluation_sums,
    parameters_by_name,
    seed_dropout,
    summed_loss,
)

READ, UPDATE, SLOTS = range(3)  # kinds of requests
# Messages are float64. A request: [kind, batch, part, loss, gradient norm, version read, worker]. What is known of an
# update, its row: [loss, gradient norm, staleness, worker]. A result: a row, and the worker's peak memory in bytes.
REQUEST, ROW, RESULT = 7, 4, 5


class ParameterServer:
    """The coordinator. Workers and servers run `serve`."""

    is_chief = True

    def __init__(self, config: Config, initial: InitialCheckpoint) -> None:
        self.config, self.world_size = config, config.strategy.workers
        rank, _, self.store = meet(config.cluster.timeout, must_agree(config, initial))
        self.listener = listen(self.store, rank)
        self.servers = _connect_to_servers(config, self.store, rank)
        self.workers: dict[int, socket.socket] = {}
        self.peaks: dict[int, int] = {}
        while len(self.workers) < self.world_size:
            with suppress(ConnectionError):
                self._welcome()
        torch.set_num_threads(cores())  # it computes while the workers wait
        self.device = replica_devices(1)[0]
        self.model = build_model(config, initial).to(self.device)
        self.shards = _shards(dict(self.model.named_parameters()), len(self.servers))

    def _welcome(self) -> int:
        """Wait for a worker that comes, or comes back. Returns which it is. Raises OSError as `accept` does."""
        rank, connection = accept(self.listener, self.config.cluster.timeout)
        worker = rank - len(self.servers) - 1
        if worker not in range(self.world_size):
            raise ConnectionError(f"rank {rank} is no worker")
        self.peaks[worker] = int(receive(connection, torch.empty(1, dtype=torch.float64)))
        self.workers[worker] = connection
        return worker

    def train(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        if self.config.strategy.max_staleness == 0:
            return self._train_synchronously(batches)
        return self._train_asynchronously(batches)

    def _train_asynchronously(self, batches: Iterable[GlobalBatch]) -> Iterator[StepResult]:
        """The batches of a worker that falls go to others; the servers know which of them have been applied."""
        strategy = self.config.strategy
        at_once = 2 * self.world_size  # the next batch waits where the worker is: none idles
        hand_out = HandOut(batches, strategy.updates_per_batch, at_once, strategy.max_staleness)
        given: dict[int, deque[GlobalBatch]] = {worker: deque() for worker in self.workers}  # in order of their results
        again: deque[GlobalBatch] = deque()
        while True:
            while given and (batch := again.popleft() if again else hand_out.take()) is not None:
                worker = min(given, key=lambda each: len(given[each]))
                given[worker].append(batch)
                with suppress(OSError):  # it has fallen, as is seen below
                    _request(self.workers[worker], UPDATE, batch.step, batch.part)
            if given and not hand_out.under_way:
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
                hand_out.finish(batch)
                loss, grad_norm, staleness, by = result
                yield StepResult(batch, loss, grad_norm, int(staleness), int(by))
            if self.listener in ready:
                with suppress(OSError):
                    worker = self._welcome()
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
                _request(self.workers[worker], UPDATE, batch.step, worker)
            losses, norms, *_ = np.transpose([self._result(worker) for worker in range(self.world_size)])
            yield StepResult(batch, losses.sum(), norms[0], staleness=0)

    @torch.no_grad()
    def evaluate(self, batches: Iterable[GlobalBatch]) -> Evaluation:
        _read(self.servers, self.shards)
        self.model.eval()
        sums, count = torch.zeros(2, dtype=torch.float64, device=self.device), 0
        for batch in batches:
            shard = to_tensors(batch.shard(0, 1), self.device)
            logits = compute_logits(self.model, shard, self.config.train.precision)
            sums += evaluation_sums(logits, shard)
            count += batch.size
        summed_loss, right = sums.tolist()
        return Evaluation(summed_loss, right, count)

    def state(self) -> State:
        _read(self.servers, self.shards)
        slots: dict[str, np.ndarray] = {}
        for server, shard in zip(self.servers, self.shards, strict=True):
            _request(server, SLOTS)
            for slot in slot_names(self.config):
                parts = _parts(receive(server, _room(shard.values())), shard.values())
                slots |= {f"{slot}.{name}": part.numpy() for name, part in zip(shard, parts, strict=True)}
        return State(parameters_by_name(self.model), slots)

    def load(self, checkpoint: Checkpoint) -> None:
        """The servers have done it: see `serve`."""

    def report(self) -> dict[str, Any]:
        peaks = [self.peaks[worker] for worker in range(self.world_size)]
        return {"peak_memory_bytes": peaks, "version": _read(self.servers, self.shards)}


def serve(config: Config) -> int:
    """Be a worker or a parameter server until the coordinator is gone. Returns the exit code of this process."""
    cache, initial, checkpoint = find_start(config)
    rank, _, store = meet(config.cluster.timeout, must_agree(config, initial))
    if rank > config.strategy.parameter_servers:
        _work(config, initial, cache.train, store, rank)
    else:
        _Server(config, initial, checkpoint, store, rank).serve()
    return 0


class _Server:
    """It knows its parameters, and no model."""

    def __init__(
        self, config: Config, initial: InitialCheckpoint, checkpoint: Checkpoint | None, store: dist.Store, rank: int
    ) -> None:
        self.config, self.listener = config, listen(store, rank)
        servers, timeout = config.strategy.parameter_servers, timedelta(seconds=config.cluster.timeout)
        if config.strategy.max_staleness == 0:
            meeting_place = dist.PrefixStore("servers", store)
            dist.init_process_group("gloo", None, timeout, servers, rank - 1, meeting_place)
            atexit.register(dist.destroy_process_group)
        dtype = torch.float64 if config.train.precision == "float64" else torch.float32
        state = checkpoint.load() if checkpoint else State(initial.weights(), {})
        named = {name: Parameter(torch.from_numpy(array).to(dtype)) for name, array in state.parameters.items()}
        self.shard = _shards(named, servers)[rank - 1]
        self.optimizer = Optimizer(config, self.shard)
        self.version = 0  # updates so far
        if checkpoint is not None:
            self.optimizer.load(state.slots, checkpoint.position)
            self.version = checkpoint.position.step
        # The rows of the updates from each batch's parts. Staleness is -1 where there has been none.
        self.log = torch.full((config.train.steps + 1, config.strategy.workers, ROW), -1, dtype=torch.float64)
        # What there is of a synchronous update, by part, until all are there: worker, gradient, loss.
        self.held: dict[int, tuple[socket.socket, torch.Tensor, float]] = {}

    def serve(self) -> None:
        clients: dict[socket.socket, int] = {}  # and their ranks
        while True:
            for ready in wait([self.listener, *clients]):
                assert isinstance(ready, socket.socket)
                try:
                    if ready is self.listener:
                        rank, connection = accept(self.listener, self.config.cluster.timeout)
                        clients[connection] = rank
                    else:
                        self._answer(ready)
                except OSError:
                    if clients.pop(ready, None) == 0:  # the coordinator
                        return

    def _answer(self, client: socket.socket) -> None:
        request = receive(client, torch.empty(REQUEST, dtype=torch.float64)).tolist()
        kind = request[0]
        if kind == READ:
            send(client, torch.tensor([self.version], dtype=torch.float64))
            send(client, _flat(self.shard.values()))
        elif kind == SLOTS:
            slots = self.optimizer.slots()
            for slot in slot_names(self.config):
                send(client, _flat(torch.from_numpy(slots[f"{slot}.{name}"]) for name in self.shard))
        else:
            gradient = receive(client, _room(self.shard.values()))
            if self.config.strategy.max_staleness == 0:
                self._update_synchronously(client, request, gradient)
            else:
                self._update_asynchronously(client, request, gradient)

    def _update_asynchronously(self, worker: socket.socket, request: list[float], gradient: torch.Tensor) -> None:
        """Once for each part of a batch, also where a worker fell after it had sent it here and not to all servers."""
        _, step, part, loss, grad_norm, read, by = request
        row = self.log[int(step), int(part)]
        if row[2] < 0:
            self._apply(gradient, int(step), grad_norm)
            row.copy_(torch.tensor([loss, grad_norm, self.version - read, by], dtype=torch.float64))
            self.version += 1
        send(worker, row)

    def _update_synchronously(self, worker: socket.socket, request: list[float], gradient: torch.Tensor) -> None:
        """Once all parts of the batch are there: their sum, in order, by the norm that all servers know together."""
        _, step, part, loss, *_ = request
        self.held[int(part)] = worker, gradient, loss
        if len(self.held) < self.config.strategy.workers:
            return
        summed = torch.stack([self.held[part][1] for part in sorted(self.held)]).sum(0)
        norm = summed.double().square().sum()
        dist.all_reduce(norm)
        self._apply(summed, int(step), float(norm.sqrt()))
        self.version += 1
        for index, (client, _, its_loss) in self.held.items():
            send(client, torch.tensor([its_loss, norm.sqrt(), 0, index], dtype=torch.float64))
        self.held.clear()

    def _apply(self, gradient: torch.Tensor, step: int, norm: float) -> None:
        parameters = self.shard.values()
        for parameter, part in zip(parameters, _parts(gradient, parameters), strict=True):
            parameter.grad = part
        self.optimizer.update(step, torch.tensor(norm, dtype=gradient.dtype))


def _work(config: Config, initial: InitialCheckpoint, split: Split, store: dist.Store, rank: int) -> None:
    workers, index = config.strategy.workers, rank - 1 - config.strategy.parameter_servers
    device = replica_devices(workers)[index]
    model = build_model(config, initial).to(device)
    model.train()
    parameters = list(model.parameters())
    servers = _connect_to_servers(config, store, rank)
    shards = _shards(dict(model.named_parameters()), len(servers))
    coordinator = connect(store, 0, rank, config.cluster.timeout)
    coordinator.settimeout(None)  # it evaluates for as long as it takes
    send(coordinator, torch.tensor(peak_memory_bytes([device]), dtype=torch.float64))
    while True:
        try:
            request = receive(coordinator, torch.empty(REQUEST, dtype=torch.float64)).tolist()
        except OSError:
            return
        step, part = int(request[1]), int(request[2])
        read = _read(servers, shards)
        batch = find_batch(config, split, step)
        if config.strategy.max_staleness == 0:
            arrays, size = batch.shard(part, workers), batch.size
        else:
            batch = batch.parts(config.strategy.updates_per_batch)[part]
            arrays, size = batch.shard(0, 1), batch.size
        tensors = to_tensors(arrays, device)
        seed_dropout(config, step, part)
        loss = summed_loss(compute_logits(model, tensors, config.train.precision), tensors) / size
        loss.backward()
        norm = get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        for server, shard in zip(servers, shards, strict=True):
            _request(server, UPDATE, step, part, float(loss.detach()), float(norm), read, index)
            send(server, _flat(parameter.grad for parameter in shard.values()))
        model.zero_grad()
        row, *_ = [receive(server, torch.empty(ROW, dtype=torch.float64)) for server in servers]
        send(coordinator, torch.cat([row, torch.tensor(peak_memory_bytes([device]), dtype=torch.float64)]))


def _connect_to_servers(config: Config, store: dist.Store, rank: int) -> list[socket.socket]:
    servers = range(1, 1 + config.strategy.parameter_servers)
    return [connect(store, server, rank, config.cluster.timeout) for server in servers]


def _read(servers: list[socket.socket], shards: list[dict[str, Parameter]]) -> int:
    """Fetch the parameters from the servers. Returns their version, the updates that the first one had applied."""
    for server in servers:
        _request(server, READ)
    versions = []
    for server, shard in zip(servers, shards, strict=True):
        versions.append(int(receive(server, torch.empty(1, dtype=torch.float64))))
        flat = receive(server, _room(shard.values()))
        with torch.no_grad():
            for parameter, part in zip(shard.values(), _parts(flat, shard.values()), strict=True):
                parameter.copy_(part)
    return versions[0]


def _request(connection: socket.socket, *fields: float) -> None:
    send(connection, torch.tensor([*fields, *[0.0] * (REQUEST - len(fields))], dtype=torch.float64))


def _shards(named: dict[str, Parameter], servers: int) -> list[dict[str, Parameter]]:
    """Each server's parameters: the largest first, to the server that has the least."""
    shards: list[dict[str, Parameter]] = [{} for _ in range(servers)]
    for name in sorted(named, key=lambda name: (-named[name].numel(), name)):
        min(shards, key=lambda shard: sum(p.numel() for p in shard.values()))[name] = named[name]
    return shards


def _flat(tensors: Iterable[torch.Tensor | None]) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten().cpu() for tensor in tensors if tensor is not None])


def _room(parameters: Collection[Parameter]) -> torch.Tensor:
    """A flat tensor for as many numbers as these parameters have."""
    return torch.empty(sum(parameter.numel() for parameter in parameters), dtype=next(iter(parameters)).dtype)


def _parts(flat: torch.Tensor, parameters: Collection[Parameter]) -> list[torch.Tensor]:
    """Cut a flat tensor into the parameters' shapes."""
    pieces = flat.split([parameter.numel() for parameter in parameters])
    return [piece.view_as(parameter) for piece, parameter in zip(pieces, parameters, strict=True)]
