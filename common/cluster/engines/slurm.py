"""Engine of cluster=slurm: the nodes of a Slurm job step. srun starts the command once on each of them."""

import subprocess
from collections.abc import Mapping

from common.cluster.engines import env
from common.cluster.network import resolve_addresses
from common.cluster.topology import ClusterMember, HostGroup, choose_job_port
from common.config.clusters import ClusterSettings, ScheduledSettings
from common.errors import UserError

VARIABLES = ("SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS", "SLURM_NODEID")  # srun sets them
START = "start with srun --ntasks-per-node=1"


def discover(
    cluster: ClusterSettings, strategy: str, framework: str, environment: Mapping[str, str]
) -> HostGroup | ClusterMember:
    """Return the nodes of the job step. Raise UserError if srun has not started the command once on each of them."""
    assert isinstance(cluster, ScheduledSettings)
    env.check_unset(cluster, framework, environment)  # torchrun's variables would describe another run
    if "SLURM_JOB_ID" not in environment:
        raise UserError(f"cluster={cluster.kind}: SLURM_JOB_ID is not set; {START} in a job, or use cluster=local")
    if missing := [name for name in VARIABLES if name not in environment]:
        if environment.get("SLURM_JOB_NUM_NODES") == "1":
            return HostGroup()  # the batch script of a job with one node, without srun
        raise UserError(f"cluster={cluster.kind}: {', '.join(missing)} is not set; {START}")
    hosts = _expand_host_names(environment["SLURM_STEP_NODELIST"])
    tasks = environment["SLURM_STEP_NUM_TASKS"]
    if tasks != str(len(hosts)):
        raise UserError(
            f"SLURM_STEP_NUM_TASKS={tasks}: there are {len(hosts)} nodes; start with srun --ntasks={len(hosts)} "
            "--ntasks-per-node=1"
        )
    if len(hosts) == 1:
        return HostGroup()
    node, port = int(environment["SLURM_NODEID"]), cluster.port or choose_job_port(environment["SLURM_JOB_ID"])
    return HostGroup(resolve_addresses(hosts, node), node, port)


def _expand_host_names(nodes: str) -> tuple[str, ...]:
    """Expand node[1-3,7] to the names of hosts, in Slurm's order. Raise UserError."""
    command = ["scontrol", "show", "hostnames", nodes]
    try:
        return tuple(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    except (OSError, subprocess.CalledProcessError) as error:
        message = (getattr(error, "stderr", None) or str(error)).strip()
        raise UserError(
            f"SLURM_STEP_NODELIST={nodes}: {' '.join(command[:3])} fails ({message}); install scontrol"
        ) from error
