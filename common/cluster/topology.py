"""The hosts and processes of a run, and the environment variables that describe them to each framework.

PyTorch reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, which torchrun sets too. TensorFlow reads
TF_CONFIG. A role says what a process does: a "worker" computes gradients, a "ps" (parameter server) holds parameters,
and a "chief" coordinates them; "process" is any of them, since torchrun knows no roles. On each host one command starts
the processes of that host.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from common.config.clusters import ClusterSettings

TORCH_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class HostGroup:
    """The hosts of a run.

    Attributes:
        hosts: the name or address of each host.
        host_index: the index of this host; host 0 runs the chief.
        port: the first port that the processes of a host listen on; None on one machine, which uses any free ports.
    """

    hosts: tuple[str, ...] = (LOOPBACK,)
    host_index: int = 0
    port: int | None = None

    @property
    def is_multi_host(self) -> bool:
        """Return whether the user or a scheduler starts a command on every host, even if there is only one host."""
        return self.port is not None

    @property
    def ports(self) -> range:
        """All ports from the first one. A host uses one for each of its processes, and host 0 two more."""
        assert self.port is not None
        return range(self.port, 65536)

    def monitor_port(self, processes: int) -> int:
        """Return the port of host 0's command, after the ports of the run's processes. processes: their number."""
        return self.ports[processes]

    def stop_port(self, processes: int) -> int:
        """Return the port on which the chief listens for stops of other ranks, after the port of the command."""
        return self.ports[processes + 1]


def choose_job_port(job: str, lowest: int = 10_000) -> int:
    """Return the first port for the processes of a scheduler's job, by the id of the job.

    Each job has 200 ports, so jobs with consecutive ids share no port. The first port is at least `lowest`, and below
    32768, the start of the ports that Linux assigns by itself.
    """
    number = int(job) if job.isdecimal() else zlib.crc32(job.encode())
    return lowest + number % ((32_000 - lowest) // 200) * 200


@dataclass(frozen=True)
class ClusterMember:
    """This process as a member of a run that another program, such as torchrun or a scheduler, has started.

    Attributes:
        is_chief: whether this process is the chief of the run.
        roles: the number of processes of each role.
        source: the environment variable that states the roles, for error messages.
    """

    is_chief: bool
    roles: Mapping[str, int]
    source: str


@dataclass(frozen=True)
class RayNodes:
    """The nodes of a Ray cluster. This process has Ray start the run's commands there and waits for them.

    Attributes:
        count: the number of nodes now.
        gpus: the number of GPUs of the node that has the fewest.
        replicas: the number of replicas that the user asked for, since another attempt may find other nodes; None for
            as many as the nodes allow.
    """

    count: int
    gpus: int
    replicas: int | None = None


DiscoveredCluster = HostGroup | ClusterMember | RayNodes


class Engine(Protocol):
    """Interface of the modules of common/cluster/engines, each for one kind of cluster."""

    def discover(
        self, cluster: ClusterSettings, strategy: str, framework: str, environment: Mapping[str, str]
    ) -> DiscoveredCluster:
        """Return the hosts of a run, or this process as a member of a run that was started already. Raise UserError.

        Args:
            cluster: the settings of the cluster.
            strategy: the kind of the strategy.
            framework: "torch" or "tf".
            environment: the environment variables of this process.
        """


@dataclass(frozen=True)
class PlacedProcess:
    """One process of a run: the `index`-th of its role, on host `host_index`, listening at `address` (host:port)."""

    role: str
    index: int
    host_index: int
    address: str

    def __str__(self) -> str:
        return f"{self.role} {self.index}"


def place_processes(hosts: Sequence[str], roles: Mapping[str, int], ports: Sequence[int]) -> list[PlacedProcess]:
    """Place the processes of a run on its hosts. The index in the returned list is the rank in PyTorch.

    The processes of a role are placed in blocks, host after host. The workers of parameter servers are placed in
    reverse order, so that a few servers and a few workers are on different hosts.

    Args:
        hosts: the name or address of each host.
        roles: the number of processes of each role.
        ports: the ports of a host; its n-th process listens on the n-th port.
    """
    used_ports = [0] * len(hosts)
    processes = []
    for role, count in roles.items():
        for index in range(count):
            host_index = index * len(hosts) // count  # blocks of equal size, up to one process
            if role == "worker" and "ps" in roles:
                host_index = len(hosts) - 1 - host_index
            host = f"[{hosts[host_index]}]" if ":" in hosts[host_index] else hosts[host_index]
            processes.append(PlacedProcess(role, index, host_index, f"{host}:{ports[used_ports[host_index]]}"))
            used_ports[host_index] += 1
    return processes


def make_torch_environment(processes: Sequence[PlacedProcess], process: PlacedProcess) -> dict[str, str]:
    """Return the environment variables from which PyTorch learns its rank. processes: all processes of the run."""
    master, _, port = processes[0].address.rpartition(":")
    same_host = [other for other in processes if other.host_index == process.host_index]
    values = (processes.index(process), len(processes), same_host.index(process), master.strip("[]"), port)
    return dict(zip(TORCH_VARIABLES, map(str, values), strict=True))


def make_tf_config(processes: Sequence[PlacedProcess], process: PlacedProcess) -> dict[str, str]:
    """Return the environment variable from which TensorFlow learns its task. processes: all processes of the run."""
    cluster: dict[str, list[str]] = {}
    for other in processes:
        cluster.setdefault(other.role, []).append(other.address)
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": process.role, "index": process.index}})}
