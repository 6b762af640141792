"""Ports that the processes of a run listen on."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from common.errors import UserError


@contextmanager
def reserve_ports(count: int) -> Iterator[list[int]]:
    """Free ports that nobody else can take meanwhile; only a server that sets SO_REUSEPORT can listen on them."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.bind(("", 0))
        yield [each.getsockname()[1] for each in sockets]


def check_ports(ports: Sequence[int]) -> None:
    """Raises UserError where something on this machine listens on one of these."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError as error:
                raise UserError(
                    f"cluster.port: port {port} is in use on this host ({error.strerror}); give another"
                ) from error
