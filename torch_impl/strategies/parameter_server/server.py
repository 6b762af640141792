"""A parameter server: it holds a part of the parameters, and applies the gradients that workers send."""

import atexit
import socket
from datetime import timedelta
from multiprocessing.connection import wait

import torch
import torch.distributed as dist
from torch.nn import Parameter

from common.config.schema import Config
from common.config.strategies import ParameterServerSettings
from common.run.prepare import Prepared
from common.training.state import State
from common.training.stop import Stop
from torch_impl.communication.connection import accept, listen, receive, send
from torch_impl.communication.rendezvous import Group, join_group
from torch_impl.optimizer import Optimizer
from torch_impl.strategies.parameter_server.messages import (
    READ,
    REQUEST,
    ROW,
    SLOTS,
    flat,
    parts_of,
    room_for,
    shards_of,
)
from torch_impl.strategies.parameter_server.worker import work


def serve(config: Config, prepared: Prepared) -> int:
    """Be a worker or a parameter server until the coordinator ends. Returns the exit code of this process."""
    settings = config.strategy
    assert isinstance(settings, ParameterServerSettings)
    stop = Stop()
    group = join_group(config, prepared)
    assert group.channel is not None
    group.channel.attach(stop)
    if group.rank > settings.server_count:
        work(config, prepared, group)
    else:
        Server(config, prepared, group).serve()
    return 0 if stop.signum is None else 128 + stop.signum


class Server:
    """Holds a part of the parameters; it has no model."""

    def __init__(self, config: Config, prepared: Prepared, group: Group) -> None:
        assert isinstance(config.strategy, ParameterServerSettings) and group.store is not None
        self.config, self.settings, self.listener = config, config.strategy, listen(group.store, group.rank)
        servers, timeout = self.settings.server_count, timedelta(seconds=config.cluster.timeout)
        if self.settings.synchronous:
            store = dist.PrefixStore("servers", group.store)
            dist.init_process_group("gloo", None, timeout, servers, group.rank - 1, store)
            atexit.register(dist.destroy_process_group)
        checkpoint = prepared.checkpoint
        dtype = torch.float64 if config.train.precision == "float64" else torch.float32
        state = checkpoint.load() if checkpoint else State(prepared.initial.weights(), {})
        frozen = prepared.initial.hf_config.get("frozen", [])
        arrays = {name: array for name, array in state.weights.items() if name not in frozen}
        named = {name: Parameter(torch.from_numpy(array).to(dtype)) for name, array in arrays.items()}
        self.shard = shards_of(named, servers)[group.rank - 1]
        self.optimizer = Optimizer(config, self.shard)
        self.version = 0  # updates so far
        if checkpoint is not None:
            self.optimizer.load(state.slots, checkpoint.position)
            self.version = checkpoint.position.step
        # The rows of the updates from each batch's parts. Staleness is -1 where there has been none.
        self.log = torch.full((config.train.steps + 1, self.settings.world_size, ROW), -1, dtype=torch.float64)
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
            send(client, flat(self.shard.values()))
        elif kind == SLOTS:
            slots = self.optimizer.slots()
            for slot in self.config.optimizer.slots:
                send(client, flat(torch.from_numpy(slots[f"{slot}.{name}"]) for name in self.shard))
        else:
            gradient = receive(client, room_for(self.shard.values()))
            if self.settings.synchronous:
                self._update_synchronously(client, request, gradient)
            else:
                self._update_asynchronously(client, request, gradient)

    def _update_asynchronously(self, worker: socket.socket, request: list[float], gradient: torch.Tensor) -> None:
        """Once for each part of a batch, also where a worker crashed before it had sent it to all servers."""
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
        if len(self.held) < self.settings.world_size:
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
        for parameter, part in zip(parameters, parts_of(gradient, parameters), strict=True):
            parameter.grad = part
        self.optimizer.update(step, torch.tensor(norm, dtype=gradient.dtype))
