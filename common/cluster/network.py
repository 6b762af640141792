"""The network interfaces and addresses of this machine."""

import socket
import time
from collections.abc import Collection, Sequence

import psutil

from common.errors import UserError

POLL_SECONDS = 1.0  # time between two attempts to look up a name
# TCP probes of a silent host: seconds until the first one, seconds between two, and how many may go unanswered.
PROBES = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}


def enable_keep_alive(connection: socket.socket) -> None:
    """Make reads from a connection fail if the host at its other end becomes silent."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in PROBES.items():
        if hasattr(socket, option):  # only Linux has all options
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def find_interface_with(addresses: Collection[str]) -> str | None:
    """Return the name of a network interface that has one of these addresses; None if no interface has one."""
    for name, interface_addresses in psutil.net_if_addrs().items():
        if any(entry.address in addresses for entry in interface_addresses):
            return str(name)
    return None


def find_loopback_interface() -> str:
    """Return the name of the network interface that has 127.0.0.1."""
    name = find_interface_with(["127.0.0.1"])
    assert name is not None
    return name


def find_interface_towards(host: str) -> str | None:
    """Return the name of the network interface that leads to a host; None if no interface does."""
    try:
        return find_interface_with([find_address_towards(host)])
    except OSError:
        return None


def find_address_towards(host: str) -> str:
    """Return the address of this machine on the route to a host. Raise OSError if there is no route."""
    family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # chooses a route, but sends nothing; so any port will do
        return str(probe.getsockname()[0])


def wait_for_address(host: str, deadline: float) -> str:
    """Return the address of this machine on the route to a host, as soon as the host's name is known.

    Args:
        host: name or address of the host.
        deadline: the value of time.monotonic() at which to give up.

    Raises:
        OSError: the name is not known at the deadline.
    """
    while True:
        try:
            return find_address_towards(host)
        except OSError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(POLL_SECONDS)


def find_own_address(hosts: Sequence[str], host_index: int) -> str:
    """Return the address at which the other hosts reach this machine. Raise OSError if there is no route to them.

    A machine may resolve its own name to 127.0.1.1, which other hosts cannot reach. Therefore the result is the address
    on the route to one of the other hosts, if there are any.

    Args:
        hosts: the names of all hosts. The same name several times is one host.
        host_index: the index of this machine in `hosts`.
    """
    return find_address_towards(next((host for host in hosts if host != hosts[host_index]), hosts[host_index]))


def resolve_addresses(hosts: Sequence[str], host_index: int) -> tuple[str, ...]:
    """Return the addresses at which the hosts reach each other. Raise UserError.

    Args:
        hosts: the names of all hosts.
        host_index: the index of this machine in `hosts`.
    """
    addresses = []
    for index, host in enumerate(hosts):
        try:
            if index == host_index:
                addresses.append(find_own_address(hosts, index))
            else:
                addresses.append(str(socket.getaddrinfo(host, None)[0][4][0]))
        except OSError as error:
            raise UserError(
                f"{host}: has no address here ({error.strerror}); its name must be known on every node"
            ) from error
    return tuple(addresses)
