"""A parameter server, which holds a shard of the parameters and applies the gradients of the workers."""

import atexit
import socket
from dataclasses import dataclass, fields
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn import Parameter

from common.config.strategies import ParameterServerSettings
from common.run.context import RunContext
from common.training.state import State
from common.training.stop import Stop
from common.training.strategy import require_settings
from torch_impl.communication.connection import RankListener
from torch_impl.communication.rendezvous import Group, join_group
from torch_impl.models.parameter_groups import find_groups
from torch_impl.optimizer import Optimizer
from torch_impl.strategies.parameter_server.messages import (
    AppliedUpdate,
    ApplyGradient,
    ParametersVersion,
    ReadParameters,
    ReadSlots,
    SetPlateauFactor,
    receive_message,
    send_message,
)
from torch_impl.strategies.parameter_server.shards import (
    assign_to_servers,
    list_slot_shapes,
    receive_flat,
    send_flat,
    split_flat,
)
from torch_impl.strategies.parameter_server.worker import work


def serve(context: RunContext) -> int:
    """Serve as a worker or a parameter server until the coordinator ends. Return the exit code of this process."""
    config = context.config
    settings = require_settings(config.strategy, ParameterServerSettings)
    stop = Stop()
    group = join_group(context)
    assert group.channel is not None
    group.channel.attach(stop)
    if group.rank > settings.server_count:  # rank 0 is the coordinator, ranks 1 to server_count are the servers
        work(context, group)
    else:
        Server(context, group).serve()
    return 0 if stop.signum is None else 128 + stop.signum


class UpdateLog:
    """The updates that a server has applied, by step and part, so that a gradient sent twice is applied once.

    An update is made from a part of the step's global batch. A long run makes millions of updates, so the log keeps
    them as rows of one tensor and not as objects.
    """

    def __init__(self, steps: int, parts: int) -> None:
        """Prepare for updates of steps 1 to `steps`. Each step has parts 0 to `parts` - 1."""
        self._applied = torch.zeros([steps + 1, parts], dtype=torch.bool)
        self._numbers = torch.zeros([steps + 1, parts, len(fields(AppliedUpdate))], dtype=torch.float64)

    def record(self, step: int, part: int, update: AppliedUpdate) -> None:
        """Remember the update that part `part` of global batch `step` has made."""
        self._applied[step, part] = True
        self._numbers[step, part] = torch.tensor(update.to_numbers(), dtype=torch.float64)

    def find(self, step: int, part: int) -> AppliedUpdate | None:
        """Return the update of a part of a global batch, or None if there was no update."""
        if not self._applied[step, part]:
            return None
        return AppliedUpdate.from_numbers(self._numbers[step, part].tolist())


@dataclass(frozen=True)
class HeldGradient:
    """A worker's gradient of one part of a batch, which waits for the other parts of a synchronous update."""

    worker: socket.socket
    gradient: torch.Tensor  # flat gradient of the server's shard
    loss: float


class Server:
    """A parameter server. It holds a shard of the parameters and their optimizer state, but no model."""

    def __init__(self, context: RunContext, group: Group) -> None:
        config = context.config
        assert group.store is not None
        self.config = config
        self.settings = require_settings(config.strategy, ParameterServerSettings)
        self.listener = RankListener(group.store, group.rank, config.cluster.timeout)
        server_count, server_index = self.settings.server_count, group.rank - 1
        if self.settings.synchronous:  # the servers add up the squared norms of their shards with an all-reduce
            store = dist.PrefixStore("servers", group.store)
            timeout = timedelta(seconds=config.cluster.timeout)
            dist.init_process_group("gloo", None, timeout, server_count, server_index, store)
            atexit.register(dist.destroy_process_group)
        checkpoint = context.inputs.checkpoint
        dtype = torch.float64 if config.train.precision == "float64" else torch.float32
        state = checkpoint.load() if checkpoint else State(context.inputs.initial.weights(), {})
        frozen = context.inputs.initial.hf_config.get("frozen", [])  # parameters of a user's model that are not trained
        arrays = {name: array for name, array in state.weights.items() if name not in frozen}
        parameters = {name: Parameter(torch.from_numpy(array).to(dtype)) for name, array in arrays.items()}
        groups = find_groups(parameters, config)
        parameters = {name: parameter for name, parameter in parameters.items() if not groups[name].frozen}
        self.shard = assign_to_servers(parameters, server_count)[server_index]
        self.optimizer = Optimizer(config, self.shard)
        self.version = 0  # number of updates of the shard so far
        if checkpoint is not None:
            self.optimizer.load(state.slots, checkpoint.position)
            self.version = checkpoint.position.step
        self.log = UpdateLog(config.train.steps, self.settings.world_size)
        # The gradient of each part of the batch, until all parts have arrived
        self.held_gradients: dict[int, HeldGradient] = {}

    def serve(self) -> None:
        """Answer the requests of all clients until the coordinator disconnects."""
        ranks: dict[socket.socket, int] = {}  # the rank of each client
        while True:
            readable, arrivals = self.listener.wait(ranks, None)
            for client in readable:
                try:
                    self._answer(client)
                except OSError:
                    if ranks.pop(client) == 0:  # the coordinator has ended; a worker could still restart
                        return
            ranks |= {connection: rank for rank, connection in arrivals}

    def _answer(self, client: socket.socket) -> None:
        request = receive_message(client, ReadParameters, ReadSlots, SetPlateauFactor, ApplyGradient)
        match request:
            case ReadParameters():
                send_message(client, ParametersVersion(self.version))
                send_flat(client, self.shard.values())
            case ReadSlots():
                slots = self.optimizer.slots()
                for shapes in list_slot_shapes(self.shard, self.config):
                    send_flat(client, (torch.from_numpy(slots[name]) for name in shapes))
            case SetPlateauFactor():
                self.optimizer.plateau_factor = request.factor
                send_message(client, request)
            case ApplyGradient():
                gradient = receive_flat(client, self.shard.values())
                if self.settings.synchronous:
                    self._update_synchronously(client, request, gradient)
                else:
                    self._update_asynchronously(client, request, gradient)

    def _update_asynchronously(self, worker: socket.socket, request: ApplyGradient, gradient: torch.Tensor) -> None:
        """Apply a gradient unless an update from the same part of the batch has been applied.

        A worker may crash after it has sent its gradient to some of the servers. Then another worker computes the
        gradient of this part again and sends it to all servers.
        """
        update = self.log.find(request.step, request.part)
        if update is None:
            self._apply(gradient, request.step, request.grad_norm)
            staleness = self.version - request.version_read
            update = AppliedUpdate(request.loss, request.grad_norm, staleness, request.worker)
            self.log.record(request.step, request.part, update)
            self.version += 1
        send_message(worker, update)

    def _update_synchronously(self, worker: socket.socket, request: ApplyGradient, gradient: torch.Tensor) -> None:
        """Hold a gradient until the gradients of all parts have arrived, then apply their sum.

        The gradients are added in the order of the parts. The norm by which the sum is clipped includes the shards of
        all servers.
        """
        self.held_gradients[request.part] = HeldGradient(worker, gradient, request.loss)
        if len(self.held_gradients) < self.settings.world_size:
            return
        summed = torch.stack([self.held_gradients[part].gradient for part in sorted(self.held_gradients)]).sum(0)
        squared_norm = summed.double().square().sum()
        dist.all_reduce(squared_norm)
        grad_norm = float(squared_norm.sqrt())
        self._apply(summed, request.step, grad_norm)
        self.version += 1
        for part, held in self.held_gradients.items():
            send_message(held.worker, AppliedUpdate(held.loss, grad_norm, staleness=0, worker=part))
        self.held_gradients.clear()

    def _apply(self, gradient: torch.Tensor, step: int, grad_norm: float) -> None:
        parameters = self.shard.values()
        for parameter, parameter_gradient in zip(parameters, split_flat(gradient, parameters), strict=True):
            parameter.grad = parameter_gradient
        self.optimizer.update(step, torch.tensor(grad_norm, dtype=gradient.dtype))
