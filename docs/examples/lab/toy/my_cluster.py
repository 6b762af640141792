"""A cluster engine, which finds the hosts of a run.

It reads their addresses from MY_CLUSTER_HOSTS=10.0.0.1,10.0.0.2 and the index of this host from MY_CLUSTER_NODE=0.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from common.cluster.topology import HostGroup
from common.config.clusters import CLUSTERS, ClusterSettings
from common.config.keys import HOST, key
from common.errors import UserError


@dataclass(frozen=True)
class MyClusterSettings(ClusterSettings):
    """Settings of the engine."""

    engine = __name__

    port: int = key(HOST, at_least=1024, at_most=65000)


CLUSTERS["my_cluster"] = MyClusterSettings


def discover(cluster: ClusterSettings, strategy: str, framework: str, environment: Mapping[str, str]) -> HostGroup:
    """Return the hosts and the index of this host. Raise UserError if a variable is missing or wrong."""
    assert isinstance(cluster, MyClusterSettings)
    hosts = tuple(filter(None, environment.get("MY_CLUSTER_HOSTS", "").split(",")))
    node = environment.get("MY_CLUSTER_NODE", "")
    if not hosts:
        raise UserError("cluster=my_cluster: MY_CLUSTER_HOSTS is not set; set it to the addresses of the hosts")
    if not node.isdecimal() or int(node) >= len(hosts):
        raise UserError(f"MY_CLUSTER_NODE={node}: must be from 0 to {len(hosts) - 1}, an index of MY_CLUSTER_HOSTS")
    return HostGroup(hosts, int(node), cluster.port) if len(hosts) > 1 else HostGroup()
