"""Whatever the environment shows."""

import sys
from collections.abc import Mapping

from common.cluster.engines import env, kubernetes, local, ray, skypilot, slurm
from common.cluster.topology import DiscoveredCluster, HostGroup
from common.config.clusters import ClusterSettings


def discover(
    cluster: ClusterSettings, strategy: str, framework: str, environment: Mapping[str, str]
) -> DiscoveredCluster:
    """The cluster of the first engine whose variables are set, or this machine. Says which. Raises UserError."""
    engines = {env.VARIABLES[framework]: env, "SLURM_JOB_ID": slurm, "SKYPILOT_NODE_IPS": skypilot}
    engines |= {kubernetes.INDEX: kubernetes, kubernetes.VOLCANO_INDEX: kubernetes}
    engines |= {ray.VARIABLE: ray}
    engine, because = local, "no scheduler's variables are set"
    if shown := [variable for variable in engines if variable in environment]:
        engine, because = engines[shown[0]], f"{shown[0]} is set"
    found = engine.discover(cluster, strategy, framework, environment)
    kind = engine.__name__.rpartition(".")[2]
    where = (
        f", node {found.host_index} of {len(found.hosts)}"
        if isinstance(found, HostGroup) and found.is_multi_host
        else ""
    )
    print(f"cluster={kind}{where}: {because}", file=sys.stderr)
    return found
