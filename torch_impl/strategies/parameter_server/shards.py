"""The shards of the parameters: which server holds which parameters, and how they travel as flat tensors."""

import socket
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch.nn import Parameter

from common.config.keras_layout import Shape
from common.config.schema import AVERAGE, Config
from torch_impl.communication.connection import connect, receive_tensor, send_tensor
from torch_impl.strategies.parameter_server.messages import (
    ParametersVersion,
    ReadParameters,
    ReadSlots,
    receive_message,
    send_message,
)

Shard = dict[str, Parameter]  # the parameters of one server, by name


def assign_to_servers(parameters: dict[str, Parameter], server_count: int) -> list[Shard]:
    """Divide the parameters over the servers: the largest first, each to the server with the fewest elements so far.

    Every process computes the same shards, because the result depends only on names and sizes.
    """
    shards: list[Shard] = [{} for _ in range(server_count)]
    for name in sorted(parameters, key=lambda name: (-parameters[name].numel(), name)):
        smallest = min(shards, key=lambda shard: sum(parameter.numel() for parameter in shard.values()))
        smallest[name] = parameters[name]
    return shards


def connect_to_servers(store: dist.Store, server_count: int, rank: int, timeout: float) -> list[socket.socket]:
    """Connect this rank to all servers, which are ranks 1 to `server_count`."""
    return [connect(store, server, rank, timeout) for server in range(1, 1 + server_count)]


def read_parameters(servers: Sequence[socket.socket], shards: Sequence[Shard]) -> int:
    """Copy the parameters of the servers into the shards. Return the version of the first server's parameters."""
    for server in servers:
        send_message(server, ReadParameters())
    versions = []
    for server, shard in zip(servers, shards, strict=True):
        versions.append(receive_message(server, ParametersVersion).version)
        values = split_flat(receive_flat(server, shard.values()), shard.values())
        with torch.no_grad():
            for parameter, value in zip(shard.values(), values, strict=True):
                parameter.copy_(value)
    return versions[0]


def read_slots(server: socket.socket, shard: Shard, config: Config) -> dict[str, np.ndarray]:
    """Return the optimizer slots of a server's parameters, by `<slot>.<parameter>`."""
    send_message(server, ReadSlots())
    dtype = next(iter(shard.values())).dtype
    arrays: dict[str, np.ndarray] = {}
    for shapes in list_slot_shapes(shard, config):
        tensors = [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes.values()]
        values = split_flat(receive_flat(server, tensors), tensors)
        arrays |= {name: value.numpy() for name, value in zip(shapes, values, strict=True)}
    return arrays


def list_slot_shapes(shard: Shard, config: Config) -> Iterator[dict[str, Shape]]:
    """Yield the shapes of one slot after the other, by `<slot>.<parameter>`. Skip slots that no parameter has."""
    slots = {name: config.list_slots(name, tuple(parameter.shape)) for name, parameter in shard.items()}
    for slot in config.slots:
        if shapes := {f"{slot}.{name}": shapes[slot] for name, shapes in slots.items() if slot in shapes}:
            yield shapes


@torch.no_grad()
def load_averages(shards: Sequence[Shard], slots: Mapping[str, np.ndarray]) -> None:
    """Set the parameters of the shards to their averages, which the servers keep as a slot."""
    for shard in shards:
        for name, parameter in shard.items():
            parameter.copy_(torch.from_numpy(slots[f"{AVERAGE}.{name}"]))


def send_flat(connection: socket.socket, tensors: Iterable[torch.Tensor]) -> None:
    """Send tensors as one flat tensor."""
    send_tensor(connection, torch.cat([tensor.detach().flatten().cpu() for tensor in tensors]))


def receive_flat(connection: socket.socket, parameters: Collection[torch.Tensor]) -> torch.Tensor:
    """Receive a flat tensor that has as many elements as the parameters, of the same dtype."""
    length = sum(parameter.numel() for parameter in parameters)
    return receive_tensor(connection, torch.empty(length, dtype=next(iter(parameters)).dtype))


def split_flat(flat: torch.Tensor, parameters: Collection[torch.Tensor]) -> list[torch.Tensor]:
    """Cut a flat tensor into views that have the shapes of the parameters."""
    pieces = flat.split([parameter.numel() for parameter in parameters])
    return [piece.view_as(parameter) for piece, parameter in zip(pieces, parameters, strict=True)]
