"""Engine of cluster=local: this machine, unless torchrun or TF_CONFIG has made this process part of a cluster."""

from collections.abc import Mapping

from common.cluster.engines import env
from common.cluster.topology import ClusterMember, HostGroup
from common.config.clusters import ClusterSettings


def discover(
    cluster: ClusterSettings, strategy: str, framework: str, environment: Mapping[str, str]
) -> HostGroup | ClusterMember:
    """Return this machine alone, or the cluster that torchrun or TF_CONFIG describes. Raises UserError."""
    if env.VARIABLES[framework] in environment:
        return env.discover(cluster, strategy, framework, environment)
    return HostGroup()
