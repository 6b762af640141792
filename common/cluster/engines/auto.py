"""Engine of cluster=auto, which chooses one of the other engines by the environment variables."""

import sys
from collections.abc import Mapping

from common.cluster.engines import env, kubernetes, local, ray, skypilot, slurm
from common.cluster.topology import DiscoveredCluster, HostGroup
from common.config.clusters import ClusterSettings


def discover(
    cluster: ClusterSettings, strategy: str, framework: str, environment: Mapping[str, str]
) -> DiscoveredCluster:
    """Call the first engine whose variables are set, otherwise the engine of cluster=local. Print the choice.

    Raise UserError.
    """
    # The engines by variable. If several variables are set, the first one in this order decides.
    engines = {env.VARIABLES[framework]: env} if env.is_described(framework, environment) else {}
    engines |= {"SLURM_JOB_ID": slurm, "SKYPILOT_NODE_IPS": skypilot}
    engines |= {kubernetes.INDEX: kubernetes, kubernetes.VOLCANO_INDEX: kubernetes}
    engines |= {ray.VARIABLE: ray}
    engine, reason = local, "no scheduler's variables are set"
    if variables := [variable for variable in engines if variable in environment]:
        engine, reason = engines[variables[0]], f"{variables[0]} is set"
    discovered = engine.discover(cluster, strategy, framework, environment)
    kind = engine.__name__.rpartition(".")[2]
    position = ""
    if isinstance(discovered, HostGroup) and discovered.is_multi_host:
        position = f", node {discovered.host_index} of {len(discovered.hosts)}"
    print(f"cluster={kind}{position}: {reason}", file=sys.stderr)
    return discovered
