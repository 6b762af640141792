"""Tests of one parameter server (updates that arrive twice or in part, workers that crash) and of its messages."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import Thread

import pytest
import torch
import torch.distributed as dist
from torch.nn import Parameter

from tests.conftest import MakeConfig
from tests.unit.torch_impl.ready import make_ready
from torch_impl.communication.connection import connect
from torch_impl.communication.rendezvous import Group
from torch_impl.strategies.parameter_server.messages import (
    MESSAGE_TYPES,
    AppliedUpdate,
    ApplyGradient,
    ComputeGradient,
    Message,
    ParametersVersion,
    ReadParameters,
    ReadSlots,
    SetPlateauFactor,
    WorkerJoined,
    WorkerResult,
    receive_message,
    send_message,
)
from torch_impl.strategies.parameter_server.server import Server
from torch_impl.strategies.parameter_server.shards import assign_to_servers, list_slot_shapes, receive_flat, send_flat

Client = Callable[[int], socket.socket]
RATE = 0.5


@pytest.fixture
def server(small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, Client]]:
    """Start a server of plain gradient descent. Yield it and a function that connects to it as a given rank."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    overrides = ["strategy=parameter_server", "strategy.workers=2", "strategy.parameter_servers=1", "train.steps=5"]
    overrides += ["train.device=cpu"]  # one GPU is not enough for two workers
    overrides += ["optimizer=sgd", "optimizer.momentum=0", "optimizer.max_grad_norm=null", "schedule=constant"]
    context = make_ready(small_config(*overrides, f"optimizer.learning_rate={RATE}"))
    store = dist.HashStore()
    server = Server(context, Group(1, 4, store, None))
    clients = [connect(store, 1, 0, 5)]  # connect as the coordinator

    def join(rank: int) -> socket.socket:
        clients.append(connect(store, 1, rank, 5))
        return clients[-1]

    thread = Thread(target=server.serve, daemon=True)
    thread.start()
    yield server, join
    for client in clients:
        client.close()
    thread.join(5)
    assert not thread.is_alive()  # the server ends when the coordinator disconnects
    server.listener.close()


def read_version(worker: socket.socket, server: Server) -> tuple[int, torch.Tensor]:
    """Return the version of the server's parameters, and the parameters as one flat tensor."""
    send_message(worker, ReadParameters())
    version = receive_message(worker, ParametersVersion).version
    return version, receive_flat(worker, server.shard.values())


def apply(worker: socket.socket, request: ApplyGradient, gradient: torch.Tensor) -> AppliedUpdate:
    send_message(worker, request)
    send_flat(worker, [gradient])
    return receive_message(worker, AppliedUpdate)


@pytest.mark.slow
def test_an_update_that_arrives_twice_counts_once(server: tuple[Server, Client]) -> None:
    """The second update comes from a worker that receives the batch of a crashed worker."""
    first, second = server[1](2), server[1](3)
    before = read_version(first, server[0])[1]
    gradient = torch.ones_like(before)
    update = apply(first, ApplyGradient(3, 1, 0.1, 7.3, version_read=0, worker=0), gradient)
    assert update == AppliedUpdate(0.1, 7.3, staleness=0, worker=0)  # equal to the last digit of a float64
    repeated = apply(second, ApplyGradient(3, 1, 0.125, 9.0, version_read=1, worker=1), 2 * gradient)
    assert repeated == update  # the update that counts
    version, after = read_version(second, server[0])
    assert version == 1 and torch.allclose(after, before - RATE, atol=1e-6)
    other_part = apply(second, ApplyGradient(3, 0, 0.5, 1.0, version_read=0, worker=1), gradient)
    assert other_part == AppliedUpdate(0.5, 1.0, staleness=1, worker=1)
    version, after = read_version(first, server[0])
    assert version == 2 and torch.allclose(after, before - 2 * RATE, atol=1e-6)


def test_half_an_update_does_not_count(server: tuple[Server, Client]) -> None:
    crashing, other = server[1](2), server[1](3)
    before = read_version(other, server[0])[1]
    send_message(crashing, ApplyGradient(1, 0, 0.0, 0.0, version_read=0, worker=0))
    send_flat(crashing, [torch.ones(len(before) // 2)])
    crashing.close()
    assert read_version(other, server[0])[0] == 0
    assert torch.equal(read_version(other, server[0])[1], before)
    update = apply(other, ApplyGradient(1, 0, 0.5, 1.0, version_read=0, worker=1), torch.ones_like(before))
    assert update == AppliedUpdate(0.5, 1.0, staleness=0, worker=1)


@pytest.mark.slow
def test_connections_from_outside_the_run_are_ignored(server: tuple[Server, Client]) -> None:
    """A silent one delays nobody. One that claims to be the coordinator, rank 0, ends nothing when it disconnects."""
    with ExitStack() as stack:
        for content in (b"GET", bytes(8), b'{"rank": 0}\n', b'{"hello": "guess", "rank": 0}\n', b"", b"{"):
            outsider = stack.enter_context(socket.create_connection(server[0].listener.address))
            outsider.sendall(content)
            if content.endswith(b"}\n"):
                assert outsider.recv(1) == b""
        assert read_version(server[1](2), server[0])[0] == 0
    assert read_version(server[1](3), server[0])[0] == 0


MESSAGES: list[Message] = [
    WorkerJoined(2**53),
    ComputeGradient(3, 1),
    ReadParameters(),
    ParametersVersion(7),
    ReadSlots(),
    SetPlateauFactor(0.25),
    ApplyGradient(3, 1, 0.1, float("inf"), 6, 2),
    AppliedUpdate(0.1, 7.3, 1, 2),
    WorkerResult(0.1, 7.3, 1, 2, 1 << 40),
]


def test_every_message_arrives_as_it_was_sent() -> None:
    assert [type(message) for message in MESSAGES] == list(MESSAGE_TYPES)
    sender, receiver = socket.socketpair()
    with sender, receiver:
        for message in MESSAGES:
            send_message(sender, message)
            received = receive_message(receiver, *MESSAGE_TYPES)
            assert received == message
            assert [type(number) for number in received.to_numbers()] == [type(n) for n in message.to_numbers()]


def test_a_message_of_another_type_is_refused() -> None:
    sender, receiver = socket.socketpair()
    with sender, receiver:
        send_message(sender, ComputeGradient(3, 1))
        with pytest.raises(ConnectionError, match=r"expected AppliedUpdate or WorkerResult, received .* type 1"):
            receive_message(receiver, AppliedUpdate, WorkerResult)


def test_shards_are_balanced_and_the_same_in_every_process() -> None:
    parameters = {name: Parameter(torch.zeros(size)) for name, size in {"a": 1, "b": 5, "c": 3, "d": 3}.items()}
    names = [["b", "a"], ["c", "d"]]
    assert [list(shard) for shard in assign_to_servers(parameters, 2)] == names
    assert [list(shard) for shard in assign_to_servers(dict(reversed(parameters.items())), 2)] == names


def test_slots_of_another_shape_are_listed_for_the_parameters_that_have_them(make_config: MakeConfig) -> None:
    config = make_config("optimizer=adafactor", "ema.decay=0.9")
    shard = {"weight": Parameter(torch.zeros(3, 2)), "kernel": Parameter(torch.zeros(4, 3, 2))}
    assert [*list_slot_shapes(shard, config)] == [
        {"row_var.weight": (3, 1), "row_var.kernel": (4, 3, 1)},
        {"col_var.weight": (1, 2), "col_var.kernel": (4, 1, 2)},
        {"average.weight": (3, 2), "average.kernel": (4, 3, 2)},
    ]
