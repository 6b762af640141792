"""Engine of cluster=hosts: the hosts that `cluster.hosts` lists. The user starts the same command on each of them.

`cluster.node` is the index of the host on which the command is started.
"""

import socket
from collections.abc import Mapping, Sequence
from ipaddress import ip_address

from common.cluster.engines import env
from common.cluster.network import find_interface_with, find_own_address
from common.cluster.topology import ClusterMember, HostGroup
from common.config.clusters import ClusterSettings, HostsSettings
from common.errors import UserError

LOCALHOST = {"127.0.0.1", "::1"}


def discover(
    cluster: ClusterSettings, strategy: str, framework: str, environment: Mapping[str, str]
) -> HostGroup | ClusterMember:
    """Return the hosts of the config. Raise UserError if this machine is not the one that cluster.node names."""
    assert isinstance(cluster, HostsSettings)
    env.check_unset(cluster, framework, environment)  # torchrun's variables would describe another run
    cluster.check()
    own_address = _find_own_address(cluster.hosts, cluster.node)
    find_host_interface(own_address)  # raises UserError if this machine does not have the address
    hosts = [own_address if index == cluster.node else host for index, host in enumerate(cluster.hosts)]
    return HostGroup(tuple(hosts), cluster.node, cluster.port)


def _find_own_address(hosts: Sequence[str], node: int) -> str:
    """Return the name of this host, or its address if the name means a loopback address here. Raise UserError.

    On a machine that Debian's installer has set up, the machine's own name means 127.0.1.1; other systems use
    127.0.0.1. The other hosts know the name by another address.
    """
    host = hosts[node]
    addresses = _look_up(host)
    is_own_name = host in (socket.gethostname(), socket.getfqdn()) or LOCALHOST.isdisjoint(addresses)
    if addresses == {host} or not is_own_name or not all(ip_address(address).is_loopback for address in addresses):
        return host
    try:
        return find_own_address(hosts, node)
    except OSError as error:
        raise UserError(
            f"cluster.hosts: {host} is a loopback address on this host, and no other host has an address here "
            f"({error.strerror}); give the addresses of all hosts"
        ) from error


def find_host_interface(host: str) -> str:
    """Return the network interface of this machine with the address of a host. Raise UserError if there is none."""
    addresses = _look_up(host)
    if name := find_interface_with({address for address in addresses if not ip_address(address).is_loopback}):
        return name
    listed = "" if addresses == {host} else f" ({', '.join(sorted(addresses))})"
    raise UserError(
        f"cluster.node: {host}{listed} is not a network address of this machine; set it to the index of this host"
    )


def _look_up(host: str) -> set[str]:
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise UserError(f"cluster.hosts: {host} has no address ({error.strerror}); give its address") from error
