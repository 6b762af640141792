"""Engine of cluster=kubernetes: the pods of a Job, JobSet, TrainJob or Volcano job, each of which starts the command.

The first three are Indexed Jobs: the name of each pod ends with its index, from 0. Kubeflow sets torchrun's variables
PET_NNODES and PET_MASTER_ADDR in the pods of a TrainJob; the manifest of a Job or JobSet sets them itself.
"""

import re
import time
from collections.abc import Mapping, Sequence

from common.cluster.engines import env
from common.cluster.network import wait_for_address
from common.cluster.topology import ClusterMember, HostGroup, choose_job_port
from common.config.clusters import ClusterSettings, ScheduledSettings
from common.errors import PeerTimeout, UserError
from common.training.stop import interrupt_on_signals

VARIABLES = ("JOB_COMPLETION_INDEX", "PET_NNODES", "PET_MASTER_ADDR")
INDEX, VOLCANO_INDEX = VARIABLES[0], "VC_TASK_INDEX"  # the variables with this pod's index, from 0


def discover(
    cluster: ClusterSettings, strategy: str, framework: str, environment: Mapping[str, str]
) -> HostGroup | ClusterMember:
    """Return the pods of the job. Raise UserError, and PeerTimeout if a pod's name has no address in time."""
    assert isinstance(cluster, ScheduledSettings)
    env.check_unset(cluster, framework, environment)  # torchrun's variables would describe another run
    volcano = VOLCANO_INDEX in environment
    hosts = _list_volcano_pods(environment) if volcano else _list_indexed_job_pods(cluster.kind, environment)
    index_variable = VOLCANO_INDEX if volcano else INDEX
    index = environment[index_variable]
    if not index.isdecimal() or int(index) >= len(hosts):
        raise UserError(f"{index_variable}={index}: the job has pods 0 to {len(hosts) - 1}")
    if len(hosts) == 1:
        return HostGroup()
    node, port = int(index), cluster.port or choose_job_port(hosts[0])
    return HostGroup(_insert_address(hosts, node, cluster.timeout), node, port)


def _list_indexed_job_pods(kind: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the pods, such as train-0.train, train-1.train. kind: the value of `cluster`, for errors."""
    if missing := [name for name in VARIABLES if name not in environment]:
        raise UserError(
            f"cluster={kind}: {', '.join(missing)} is not set; start in an Indexed Job that sets PET_NNODES and "
            "PET_MASTER_ADDR, or use cluster=local"
        )
    pods, first = environment["PET_NNODES"], environment["PET_MASTER_ADDR"]
    if not pods.isdecimal() or int(pods) == 0:
        raise UserError(f"PET_NNODES={pods}: must be the number of the job's pods")
    name = re.fullmatch(r"([^.]+-)0(\..+)", first)
    if not name:
        raise UserError(f"PET_MASTER_ADDR={first}: must be the first pod's name and its service, such as train-0.train")
    return tuple(f"{name[1]}{index}{name[2]}" for index in range(int(pods)))


def _list_volcano_pods(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the pods, which Volcano's plugin svc lists in the variable VC_<task>_HOSTS."""
    tasks = sorted(name for name in environment if re.fullmatch("VC_.+_HOSTS", name))
    if not tasks:
        raise UserError(f"{VOLCANO_INDEX} is set but no VC_..._HOSTS; add the plugin svc to the Volcano job")
    if len(tasks) > 1:
        raise UserError(f"{', '.join(tasks)}: must be one; give the Volcano job one task, with a replica for each node")
    return tuple(environment[tasks[0]].split(","))


def _insert_address(hosts: Sequence[str], node: int, timeout: float) -> tuple[str, ...]:
    """Return the pods' names, once all can be looked up, with the address of this pod in place of its name.

    A pod may be unable to look up its own name. The other pods keep their names, because a pod that is started again
    has another address. node: the index of this pod.
    """
    deadline = time.monotonic() + timeout
    address = ""
    for host in (*hosts[:node], *hosts[node + 1 :]):
        try:
            with interrupt_on_signals():
                address = wait_for_address(host, deadline)  # this pod's address on the route to the other pod
        except OSError as error:
            raise PeerTimeout(
                f"cluster.timeout={timeout:g}: {host} has no address here ({error.strerror}); see whether its pod runs "
                "and its service selects it"
            ) from error
    return (*hosts[:node], address, *hosts[node + 1 :])
