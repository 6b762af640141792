"""Ports on which the processes of a run listen."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from common.errors import UserError


@contextmanager
def reserve_ports(count: int) -> Iterator[list[int]]:
    """Reserve free ports during the `with` block. Only a server that sets SO_REUSEPORT can listen on these ports."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for reserved in sockets:
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reserved.bind(("", 0))
        yield [reserved.getsockname()[1] for reserved in sockets]


def check_ports(ports: Sequence[int]) -> None:
    """Raise UserError if a process on this machine listens on one of these ports."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError as error:
                raise UserError(
                    f"cluster.port: port {port} is in use on this host ({error.strerror}); choose another"
                ) from error
