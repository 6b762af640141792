"""Tensors from process to process over TCP.

A process group fails with any of its ranks. Here each pair has a connection of its own: one that breaks does not affect
the others, and a process that was restarted connects again. Addresses are in the store of the rendezvous.
"""

import json
import os
import socket

import torch
import torch.distributed as dist

from common.cluster.network import address_towards
from common.cluster.peer_monitor import keep_alive

HELLO_SECONDS = 5.0


def listen(store: dist.Store, rank: int) -> socket.socket:
    """Let others connect to this rank."""
    host = address_towards(os.environ["MASTER_ADDR"])
    listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    store.set(f"address/{rank}", json.dumps(listener.getsockname()[:2]))
    return listener


def connect(store: dist.Store, to: int, rank: int, timeout: float) -> socket.socket:
    """Connect to a rank that listens, or will. Raises OSError where it does not, or later stops answering."""
    host, port = json.loads(store.get(f"address/{to}"))
    connection = _prepared(socket.create_connection((host, port), timeout), timeout)
    send(connection, torch.tensor([rank]))
    return connection


def accept(listener: socket.socket, timeout: float) -> tuple[int, socket.socket]:
    """Wait for a rank to connect. Returns which it is.

    Raises TimeoutError where none comes, ConnectionError where what comes does not say that it is one.
    """
    listener.settimeout(timeout)
    connection = _prepared(listener.accept()[0], timeout)
    connection.settimeout(min(timeout, HELLO_SECONDS))
    try:
        rank = int(receive(connection, torch.empty(1, dtype=torch.int64)))
    except OSError as error:
        connection.close()
        raise ConnectionError("something that is not a rank has connected") from error
    connection.settimeout(timeout)
    return rank, connection


def _prepared(connection: socket.socket, timeout: float) -> socket.socket:
    connection.settimeout(timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(connection)
    return connection


def send(connection: socket.socket, tensor: torch.Tensor) -> None:
    """Send the numbers of a tensor in the CPU's memory. Raises OSError where the connection is broken."""
    left = tensor.contiguous().numpy().data.cast("B")
    while left:
        left = left[connection.send(left) :]  # not sendall, whose time limit is for the whole


def receive(connection: socket.socket, tensor: torch.Tensor) -> torch.Tensor:
    """Fill a contiguous tensor with those that were sent. Returns it. Raises OSError where the connection is broken."""
    left = tensor.numpy().data.cast("B")
    while left:
        count = connection.recv_into(left)
        if not count:
            raise ConnectionError("the other process has closed the connection")
        left = left[count:]
    return tensor
