"""A parameter server by itself: updates that arrive twice or in part, and workers that crash."""

import socket
from collections.abc import Callable, Iterator
from threading import Thread

import pytest
import torch
import torch.distributed as dist

from tests.conftest import MakeConfig
from tests.unit.torch_impl.ready import make_ready
from torch_impl.communication.connection import connect, receive, send
from torch_impl.communication.rendezvous import Group
from torch_impl.strategies.parameter_server.messages import READ, ROW, UPDATE, request
from torch_impl.strategies.parameter_server.server import Server

Client = Callable[[int], socket.socket]
RATE = 0.5


@pytest.fixture
def server(small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, Client]]:
    """A server of plain gradient descent at work, and how to be its coordinator (rank 0) or a worker."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    overrides = ["strategy=parameter_server", "strategy.workers=2", "strategy.parameter_servers=1", "train.steps=5"]
    overrides += ["optimizer=sgd", "optimizer.momentum=0", "optimizer.max_grad_norm=null", "schedule=constant"]
    config, prepared = make_ready(small_config(*overrides, f"optimizer.learning_rate={RATE}"))
    store = dist.HashStore()
    server = Server(config, prepared, Group(1, 4, store, None))
    clients = [connect(store, 1, 0, 5)]  # the coordinator

    def join(rank: int) -> socket.socket:
        clients.append(connect(store, 1, rank, 5))
        return clients[-1]

    thread = Thread(target=server.serve, daemon=True)
    thread.start()
    yield server, join
    for client in clients:
        client.close()
    thread.join(5)
    assert not thread.is_alive()  # it ends when the coordinator has disconnected
    server.listener.close()


def parameters(worker: socket.socket, server: Server) -> tuple[int, torch.Tensor]:
    request(worker, READ)
    version = int(receive(worker, torch.empty(1, dtype=torch.float64)))
    return version, receive(worker, torch.empty(sum(each.numel() for each in server.shard.values())))


def update(worker: socket.socket, gradient: torch.Tensor, *about: float) -> list[float]:
    request(worker, UPDATE, *about)
    send(worker, gradient)
    return receive(worker, torch.empty(ROW, dtype=torch.float64)).tolist()


def test_an_update_that_arrives_twice_counts_once(server: tuple[Server, Client]) -> None:
    """As from a worker that gets the batch of one that crashed."""
    one, other = server[1](2), server[1](3)
    before = parameters(one, server[0])[1]
    gradient = torch.ones_like(before)
    row = update(one, gradient, 3, 1, 0.1, 7.3, 0, 0)
    assert row == [0.1, 7.3, 0, 0]  # to the last digit of a float64
    assert update(other, 2 * gradient, 3, 1, 0.125, 9.0, 1, 1) == row  # what is known of the one that counts
    version, after = parameters(other, server[0])
    assert version == 1 and torch.allclose(after, before - RATE, atol=1e-6)
    assert update(other, gradient, 3, 0, 0.5, 1.0, 0, 1) == [0.5, 1.0, 1, 1]  # the batch's other part
    version, after = parameters(one, server[0])
    assert version == 2 and torch.allclose(after, before - 2 * RATE, atol=1e-6)


def test_half_an_update_does_not_count(server: tuple[Server, Client]) -> None:
    one, other = server[1](2), server[1](3)
    before = parameters(other, server[0])[1]
    request(one, UPDATE, 1, 0, 0, 0, 0, 0)
    send(one, torch.ones(len(before) // 2))
    one.close()
    assert parameters(other, server[0])[0] == 0
    assert torch.equal(parameters(other, server[0])[1], before)
    assert update(other, torch.ones_like(before), 1, 0, 0.5, 1.0, 0, 1) == [0.5, 1.0, 0, 1]


def test_a_connection_from_outside_the_run_is_ignored(server: tuple[Server, Client]) -> None:
    stranger = socket.create_connection(server[0].listener.getsockname())
    stranger.sendall(b"GET")
    stranger.close()
    assert parameters(server[1](2), server[0])[0] == 0
