"""This machine's network interfaces and addresses."""

import socket
import time
from collections.abc import Collection, Sequence

import psutil

from common.errors import UserError

POLL_SECONDS = 1.0  # between two tries to look up a name


def find_interface_with(addresses: Collection[str]) -> str | None:
    """The name of a network interface of this machine that has one of these addresses; None where none has."""
    for name, found in psutil.net_if_addrs().items():
        if any(each.address in addresses for each in found):
            return str(name)
    return None


def find_loopback_interface() -> str:
    """The name of the network interface that has 127.0.0.1."""
    name = find_interface_with(["127.0.0.1"])
    assert name is not None
    return str(name)


def find_interface_towards(host: str) -> str | None:
    """The name of the network interface that leads to a host; None where none does."""
    try:
        return find_interface_with([find_address_towards(host)])
    except OSError:
        return None


def find_address_towards(host: str) -> str:
    """The address that this machine has on the way to a host. Raises OSError where there is no way."""
    family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # which sends nothing
        return str(probe.getsockname()[0])


def wait_for_address(host: str, deadline: float) -> str:
    """The address that this machine has on the way to a host, once the host's name is known.

    deadline: when to give up, as time.monotonic() counts. Raises OSError then.
    """
    while True:
        try:
            return find_address_towards(host)
        except OSError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(POLL_SECONDS)


def resolve_addresses(hosts: Sequence[str], node: int) -> tuple[str, ...]:
    """The addresses by which hosts reach each other. node: the index of this machine. Raises UserError.

    This machine's is the one that it has on the way to another: its own name may mean 127.0.1.1 to itself.
    """
    other = hosts[0 if node else 1]
    found = []
    for index, host in enumerate(hosts):
        try:
            found.append(find_address_towards(other) if index == node else str(socket.getaddrinfo(host, None)[0][4][0]))
        except OSError as error:
            raise UserError(
                f"{host}: has no address here ({error.strerror}); its name must be known on every node"
            ) from error
    return tuple(found)
