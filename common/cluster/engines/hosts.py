"""The hosts that the config lists; the same command is started on each."""

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
    """The hosts of the config. Raises UserError where this machine is not the one that the config says."""
    assert isinstance(cluster, HostsSettings)
    env.check_unset(cluster, framework, environment)
    cluster.check()
    find_host_interface(cluster.hosts[cluster.node])
    return HostGroup(tuple(cluster.hosts), cluster.node, cluster.port)


def find_host_interface(host: str) -> str:
    """The network interface of this machine that has the address of a host. Raises UserError where none has."""
    try:
        wanted = {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise UserError(f"cluster.hosts: {host} has no address ({error.strerror}); give its address") from error
    if name := find_interface_with({address for address in wanted if not address.startswith("127.")}):
        return name
    known = "" if wanted == {host} else f" ({', '.join(sorted(wanted))})"
    raise UserError(f"cluster.node: {host}{known} is no address of this machine in a network; give the node that it is")
