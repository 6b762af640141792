"""This machine's network interfaces and addresses."""

import socket
from collections.abc import Collection

import psutil


def interface_with(addresses: Collection[str]) -> str | None:
    """The name of a network interface of this machine that has one of these addresses; None where none has."""
    for name, found in psutil.net_if_addrs().items():
        if any(each.address in addresses for each in found):
            return str(name)
    return None


def loopback_interface() -> str:
    """The name of the network interface that has 127.0.0.1."""
    name = interface_with(["127.0.0.1"])
    assert name is not None
    return str(name)


def interface_towards(host: str) -> str | None:
    """The name of the network interface that leads to a host; None where none does."""
    try:
        return interface_with([address_towards(host)])
    except OSError:
        return None


def address_towards(host: str) -> str:
    """The address that this machine has on the way to a host. Raises OSError where there is no way."""
    family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # which sends nothing
        return str(probe.getsockname()[0])
