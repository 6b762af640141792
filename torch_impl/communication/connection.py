"""Connections over TCP that carry tensors between the processes of strategy=parameter_server.

A process group of torch fails when any of its ranks fails. Here each pair of ranks that communicate has a separate
connection: a broken connection does not affect the others, and a restarted rank connects again. Each listening rank
publishes its address in the store of the rendezvous, a dictionary that all ranks share.
"""

import json
import os
import secrets
import socket
from collections.abc import Collection

import torch
import torch.distributed as dist

from common.cluster.json_line_socket import JsonLineSocket
from common.cluster.network import enable_keep_alive, find_address_towards
from common.cluster.token_listener import TokenListener


class RankListener:
    """The listening socket of a rank. It publishes its address and its token in the store, which only ranks can read.

    Args:
        store: the store of the rendezvous.
        rank: the rank that listens.
        timeout: seconds to wait for any progress on a connection.
    """

    def __init__(self, store: dist.Store, rank: int, timeout: float) -> None:
        host = find_address_towards(os.environ["MASTER_ADDR"])
        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        token = secrets.token_hex()
        self.address: tuple[str, int] = listener.getsockname()[:2]
        self._listener, self._timeout = TokenListener(listener, token), timeout
        store.set(f"address/{rank}", json.dumps([*self.address, token]))

    def wait(
        self, connections: Collection[socket.socket], seconds: float | None
    ) -> tuple[list[socket.socket], list[tuple[int, socket.socket]]]:
        """Wait until one of `connections` can be read or a rank has connected. Other clients do not end the wait.

        Returns:
            The connections that can be read, and the number and the connection of each rank that has connected. Both
            lists are empty if `seconds` have passed; None means to wait without a limit.
        """
        readable, clients = self._listener.wait(connections, seconds)
        ranks = []
        for hello, client in clients:
            _configure(client.connection, self._timeout)
            match hello:
                case {"rank": int(rank)}:
                    ranks.append((rank, client.connection))
        return readable, ranks

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


def connect(store: dist.Store, listening_rank: int, rank: int, timeout: float) -> socket.socket:
    """Connect this rank to another rank, which listens or will listen soon.

    Args:
        store: the store of the rendezvous, which has the address and the token of the other rank.
        listening_rank: the other rank.
        rank: the number of this rank, which this function sends to the other rank.
        timeout: seconds to wait for the connection, and later for any progress on it.

    Raises:
        OSError: nobody listens, or the other end stops answering.
    """
    host, port, token = json.loads(store.get(f"address/{listening_rank}"))
    connection = socket.create_connection((host, port), timeout)
    _configure(connection, timeout)
    JsonLineSocket(connection).send({"hello": token, "rank": rank})
    return connection


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
    unfilled = tensor.numpy().data.cast("B")
    while unfilled:
        received_bytes = connection.recv_into(unfilled)
        if not received_bytes:
            raise ConnectionError("the other process has closed the connection")
        unfilled = unfilled[received_bytes:]
    return tensor
