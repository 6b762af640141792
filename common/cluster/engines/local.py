"""Engine of cluster=local: this machine, unless torchrun or TF_CONFIG has made this process part of a cluster.

A scheduler that starts the command several times means one run of all of them, so this engine refuses its processes:
each of them would train the whole run.
"""

import sys
from collections.abc import Mapping

from common.cluster.engines import env
from common.cluster.topology import ClusterMember, HostGroup
from common.config.clusters import ClusterSettings
from common.errors import UserError

# The variable with the number of a process that an MPI launcher started, and the variable with the number of all of
# them: for Open MPI; for MPICH and Intel MPI; for jsrun of LSF.
MPI_PROCESS_COUNTS = {
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
    "JSM_NAMESPACE_RANK": "JSM_NAMESPACE_SIZE",
}
# The variables with which Slurm, SkyPilot, Kubernetes and MPI number the processes that they start.
PROCESS_NUMBERS = ("SLURM_PROCID", "SKYPILOT_NODE_RANK", "JOB_COMPLETION_INDEX", *MPI_PROCESS_COUNTS)
START = "start with srun --ntasks-per-node=1 and cluster=slurm"


def discover(
    cluster: ClusterSettings, strategy: str, framework: str, environment: Mapping[str, str]
) -> HostGroup | ClusterMember:
    """Return this machine alone, or the cluster that torchrun or TF_CONFIG describes. Raise UserError."""
    if env.is_described(framework, environment):
        return env.discover(cluster, strategy, framework, environment)
    _check_started_once(cluster.kind, environment)
    return HostGroup()


def _check_started_once(kind: str, environment: Mapping[str, str]) -> None:
    """Raise UserError if a scheduler has started this command several times. kind: the value of `cluster`."""
    for variable, (count, remedy) in _list_starts(environment).items():
        if variable in environment and count.isdecimal() and int(count) > 1:
            raise UserError(
                f"cluster={kind}: {variable}={environment[variable]} says that this command was started {count} times, "
                f"and each would train the whole run; {remedy}, or unset {variable} if each is to train"
            )
    if environment.get("SLURM_PROCID") == "0" and environment.get("SLURM_NTASKS", "1") not in ("", "1"):
        print(
            f"cluster={kind}: trains on this node only, but SLURM_NTASKS={environment['SLURM_NTASKS']}; to use all "
            f"tasks, {START}",
            file=sys.stderr,
        )


def _list_starts(environment: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return, by a variable of each scheduler, the number of times it has started this command, and the remedy.

    The last entry is torchrun's, for TensorFlow: a PyTorch process has joined torchrun's run before this check.
    """
    # srun sets SLURM_STEP_NUM_TASKS. A batch script, which Slurm starts once, has only the number of the job's tasks.
    job_tasks = environment.get("SLURM_NTASKS", "") if environment.get("SLURM_PROCID", "0") != "0" else ""
    slurm_tasks = environment.get("SLURM_STEP_NUM_TASKS", job_tasks)
    nodes = environment.get("SKYPILOT_NODE_IPS", "").split()
    return {
        "SLURM_PROCID": (slurm_tasks, START),
        "SKYPILOT_NODE_RANK": (str(len(nodes)), "use cluster=skypilot"),
        "JOB_COMPLETION_INDEX": (environment.get("PET_NNODES", ""), "use cluster=kubernetes"),
        **{
            rank: (environment.get(size, ""), "start with torchrun, or use cluster=hosts")
            for rank, size in MPI_PROCESS_COUNTS.items()
        },
        "TORCHELASTIC_RUN_ID": (
            environment.get("WORLD_SIZE", ""),
            "torchrun starts no runs of TensorFlow; strategy=multiworker starts its processes itself",
        ),
    }
