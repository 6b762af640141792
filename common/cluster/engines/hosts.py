"""Engine of cluster=hosts: the hosts that `cluster.hosts` lists. The user starts the same command on each of them.

`cluster.node` is the index of the host on which the command is started.
"""

import socket
from collections.abc import Mapping

from common.cluster.engines import env
from common.cluster.network import find_interface_with
from common.cluster.topology import ClusterMember, HostGroup
from common.config.clusters import ClusterSettings, HostsSettings
from common.errors import UserError


def discover(
    cluster: ClusterSettings, strategy: str, framework: str, environment: Mapping[str, str]
) -> HostGroup | ClusterMember:
    """Return the hosts of the config. Raises UserError if this machine is not the one that cluster.node names."""
    assert isinstance(cluster, HostsSettings)
    env.check_unset(cluster, framework, environment)
    cluster.check()
    find_host_interface(cluster.hosts[cluster.node])
    return HostGroup(tuple(cluster.hosts), cluster.node, cluster.port)


def find_host_interface(host: str) -> str:
    """Return the network interface of this machine that has the address of a host. Raises UserError if none has."""
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise UserError(f"cluster.hosts: {host} has no address ({error.strerror}); give its address") from error
    if name := find_interface_with({address for address in addresses if not address.startswith("127.")}):
        return name
    known = "" if addresses == {host} else f" ({', '.join(sorted(addresses))})"
    raise UserError(f"cluster.node: {host}{known} is no address of this machine in a network; give the node that it is")
