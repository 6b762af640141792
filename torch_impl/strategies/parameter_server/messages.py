"""What the coordinator, the servers and the workers send each other: requests, and flat tensors of parameters."""

import socket
from collections.abc import Collection, Iterable

import torch
import torch.distributed as dist
from torch.nn import Parameter

from torch_impl.communication.connection import connect, receive, send

READ, UPDATE, SLOTS = range(3)  # kinds of requests
# Messages are float64. A request: [kind, batch, part, loss, gradient norm, version read, worker]. What is known of an
# update, its row: [loss, gradient norm, staleness, worker]. A result: a row, and the worker's peak memory in bytes.
REQUEST, ROW, RESULT = 7, 4, 5


def connect_to_servers(store: dist.Store, servers: int, rank: int, timeout: float) -> list[socket.socket]:
    """Connections of a rank to the servers, which are ranks 1 to `servers`."""
    return [connect(store, server, rank, timeout) for server in range(1, 1 + servers)]


def read_parameters(servers: list[socket.socket], shards: list[dict[str, Parameter]]) -> int:
    """Fetch the parameters from the servers. Returns their version, the updates that the first one had applied."""
    for server in servers:
        request(server, READ)
    versions = []
    for server, shard in zip(servers, shards, strict=True):
        versions.append(int(receive(server, torch.empty(1, dtype=torch.float64))))
        flat = receive(server, room_for(shard.values()))
        with torch.no_grad():
            for parameter, part in zip(shard.values(), parts_of(flat, shard.values()), strict=True):
                parameter.copy_(part)
    return versions[0]


def request(connection: socket.socket, *fields: float) -> None:
    send(connection, torch.tensor([*fields, *[0.0] * (REQUEST - len(fields))], dtype=torch.float64))


def shards_of(named: dict[str, Parameter], servers: int) -> list[dict[str, Parameter]]:
    """Each server's parameters: the largest first, to the server that has the least."""
    shards: list[dict[str, Parameter]] = [{} for _ in range(servers)]
    for name in sorted(named, key=lambda name: (-named[name].numel(), name)):
        min(shards, key=lambda shard: sum(p.numel() for p in shard.values()))[name] = named[name]
    return shards


def flat(tensors: Iterable[torch.Tensor | None]) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten().cpu() for tensor in tensors if tensor is not None])


def room_for(parameters: Collection[Parameter]) -> torch.Tensor:
    """A flat tensor for as many numbers as these parameters have."""
    return torch.empty(sum(parameter.numel() for parameter in parameters), dtype=next(iter(parameters)).dtype)


def parts_of(flat: torch.Tensor, parameters: Collection[Parameter]) -> list[torch.Tensor]:
    """Cut a flat tensor into the parameters' shapes."""
    pieces = flat.split([parameter.numel() for parameter in parameters])
    return [piece.view_as(parameter) for piece, parameter in zip(pieces, parameters, strict=True)]
