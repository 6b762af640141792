"""Engine of cluster=skypilot: the nodes of a SkyPilot task, which starts the command on each of them."""

from collections.abc import Mapping

from common.cluster.engines import env
from common.cluster.topology import ClusterMember, HostGroup, choose_job_port
from common.config.clusters import ClusterSettings, ScheduledSettings
from common.errors import UserError

VARIABLES = ("SKYPILOT_NODE_IPS", "SKYPILOT_NODE_RANK")


def discover(
    cluster: ClusterSettings, strategy: str, framework: str, environment: Mapping[str, str]
) -> HostGroup | ClusterMember:
    """Return the nodes of the task. Raise UserError if SkyPilot's variables are missing or contradict each other."""
    assert isinstance(cluster, ScheduledSettings)
    env.check_unset(cluster, framework, environment)  # torchrun's variables would describe another run
    if missing := [name for name in VARIABLES if name not in environment]:
        raise UserError(
            f"cluster={cluster.kind}: {', '.join(missing)} is not set; start in a SkyPilot task, or use cluster=local"
        )
    hosts, rank = tuple(environment["SKYPILOT_NODE_IPS"].split()), environment["SKYPILOT_NODE_RANK"]
    if not rank.isdecimal() or int(rank) >= len(hosts):
        raise UserError(f"SKYPILOT_NODE_RANK={rank}: SKYPILOT_NODE_IPS has nodes 0 to {len(hosts) - 1}")
    if len(hosts) == 1:
        return HostGroup()
    return HostGroup(hosts, int(rank), cluster.port or choose_job_port(environment.get("SKYPILOT_TASK_ID", "")))
