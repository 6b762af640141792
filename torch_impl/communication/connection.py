"""Tensors from process to process over TCP.

A process group fails when any of its ranks fails. Here each pair of ranks that communicate has a separate connection: a
broken connection does not affect the others, and a restarted rank connects again. Each listening rank publishes its
address in the store of the rendezvous, a dictionary that all ranks share.
"""

import json
import os
import socket

import torch
import torch.distributed as dist

from common.cluster.network import find_address_towards
from common.cluster.peer_monitor import enable_keep_alive

HELLO_SECONDS = 5.0  # how long the other end of a new connection may take to send its rank


def listen(store: dist.Store, rank: int) -> socket.socket:
    """Open a listening socket for this rank and publish its address in the store."""
    host = find_address_towards(os.environ["MASTER_ADDR"])
    listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    store.set(f"address/{rank}", json.dumps(listener.getsockname()[:2]))
    return listener


def connect(store: dist.Store, listening_rank: int, rank: int, timeout: float) -> socket.socket:
    """Connect this rank to another rank, which listens or will listen soon.

    Args:
        store: the store of the rendezvous, which has the address of the other rank.
        listening_rank: the other rank.
        rank: this rank, which is sent first.
        timeout: seconds to wait for the connection, and later for any progress on it.

    Raises:
        OSError: nobody listens, or the other end stops answering.
    """
    host, port = json.loads(store.get(f"address/{listening_rank}"))
    connection = socket.create_connection((host, port), timeout)
    _configure(connection, timeout)
    send_tensor(connection, torch.tensor([rank]))
    return connection


def accept(listener: socket.socket, timeout: float) -> tuple[int, socket.socket]:
    """Wait for a rank to connect. Return its number and the connection.

    Raises:
        TimeoutError: nobody connects within `timeout` seconds.
        ConnectionError: the client does not send a rank, so it is no process of this run.
    """
    listener.settimeout(timeout)
    connection, _ = listener.accept()
    _configure(connection, min(timeout, HELLO_SECONDS))
    try:
        rank = int(receive_tensor(connection, torch.empty(1, dtype=torch.int64)))
    except OSError as error:
        connection.close()
        raise ConnectionError("a client that is not a rank of this run has connected") from error
    connection.settimeout(timeout)
    return rank, connection


def _configure(connection: socket.socket, timeout: float) -> None:
    connection.settimeout(timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    enable_keep_alive(connection)


def send_tensor(connection: socket.socket, tensor: torch.Tensor) -> None:
    """Send the elements of a tensor on the CPU. Raise OSError if the connection is broken."""
    unsent = tensor.contiguous().numpy().data.cast("B")
    while unsent:
        unsent = unsent[connection.send(unsent) :]  # sendall would apply the timeout to the whole tensor


def receive_tensor(connection: socket.socket, tensor: torch.Tensor) -> torch.Tensor:
    """Fill a contiguous tensor on the CPU with received elements, and return it.

    Both ends must agree on the dtype and the number of elements. Raise OSError if the connection is broken.
    """
    missing = tensor.numpy().data.cast("B")
    while missing:
        count = connection.recv_into(missing)
        if not count:
            raise ConnectionError("the other process has closed the connection")
        missing = missing[count:]
    return tensor
