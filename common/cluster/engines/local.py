"""This machine. A process that torchrun or TF_CONFIG made part of a cluster joins that one."""

from collections.abc import Mapping

from common.cluster.engines import env
from common.cluster.topology import ClusterMember, HostGroup
from common.config.clusters import ClusterSettings


def discover(
    cluster: ClusterSettings, strategy: str, framework: str, environment: Mapping[str, str]
) -> HostGroup | ClusterMember:
    """This machine alone, unless the environment says more."""
    if env.VARIABLES[framework] in environment:
        return env.discover(cluster, strategy, framework, environment)
    return HostGroup()
