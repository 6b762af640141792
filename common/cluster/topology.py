"""Who takes part in a run, and where: a pure mapping of hosts and roles to the variables that each framework reads.

PyTorch reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, which torchrun sets too; TensorFlow reads
TF_CONFIG.
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
    """The hosts of a run. host_index: the index of this one. port: the first that a host's processes listen on.

    port is None on one machine, where the ports are whichever are free.
    """

    hosts: tuple[str, ...] = (LOOPBACK,)
    host_index: int = 0
    port: int | None = None

    @property
    def is_multi_host(self) -> bool:
        """Whether the run's commands are on hosts of a network, each started by itself."""
        return self.port is not None

    @property
    def ports(self) -> range:
        """What the processes of a host listen on, one each."""
        assert self.port is not None
        return range(self.port, 65536)

    def monitor_port(self, processes: int) -> int:
        """Where the first host's command listens: after the ports of the run's processes."""
        return self.ports[processes]

    def stop_port(self, processes: int) -> int:
        """Where the chief listens for the stops of other ranks: after the command."""
        return self.ports[processes + 1]


def choose_job_port(job: str, lowest: int = 10_000) -> int:
    """The first port for the processes of a scheduler's job: jobs with ids in a row do not share any.

    From `lowest` on, and below 32768, where Linux begins to hand out ports by itself.
    """
    number = int(job) if job.isdecimal() else zlib.crc32(job.encode())
    return lowest + number % ((32_000 - lowest) // 200) * 200


@dataclass(frozen=True)
class ClusterMember:
    """This process is one of a run's already: a scheduler has started it and set its framework's variables.

    roles: the processes of each role. source: the variable that has them, for error messages.
    """

    is_chief: bool
    roles: Mapping[str, int]
    source: str


@dataclass(frozen=True)
class RayNodes:
    """The nodes of a Ray cluster: this process has the run's commands started there and waits for them.

    nodes: how many there are now. gpus: the fewest that one of them has. replicas: as the user gave them, since another
    attempt may find other nodes; None for as many as they have.
    """

    nodes: int
    gpus: int
    replicas: int | None = None


DiscoveredCluster = HostGroup | ClusterMember | RayNodes


class Engine(Protocol):
    """A module of common/cluster/engines."""

    def discover(
        self, cluster: ClusterSettings, strategy: str, framework: str, environment: Mapping[str, str]
    ) -> DiscoveredCluster:
        """The hosts of a run, or what this process is where it is started already. Raises UserError.

        strategy: its kind. framework: "torch" or "tf". environment: the variables of this process.
        """


@dataclass(frozen=True)
class PlacedProcess:
    """One process of a run: the `index`-th of its role, on host `host_index`, listening at `address`, host:port."""

    role: str
    index: int
    host_index: int
    address: str

    def __str__(self) -> str:
        return f"{self.role} {self.index}"


def place_processes(hosts: Sequence[str], roles: Mapping[str, int], ports: Sequence[int]) -> list[PlacedProcess]:
    """Place the tasks of a run; PyTorch's rank is the place in the list.

    The tasks of a role stand in blocks, host after host. Parameter servers' workers stand in the reverse order, so
    that few of each are on different hosts. ports: the n-th task of a host listens on the n-th.
    """
    used = [0] * len(hosts)
    tasks = []
    for role, count in roles.items():
        for index in range(count):
            node = index * len(hosts) // count
            if role == "worker" and "ps" in roles:
                node = len(hosts) - 1 - node
            host = f"[{hosts[node]}]" if ":" in hosts[node] else hosts[node]
            tasks.append(PlacedProcess(role, index, node, f"{host}:{ports[used[node]]}"))
            used[node] += 1
    return tasks


def make_torch_environment(tasks: Sequence[PlacedProcess], task: PlacedProcess) -> dict[str, str]:
    """The variables that make a process the rank of a task."""
    master, _, port = tasks[0].address.rpartition(":")
    local = [other for other in tasks if other.host_index == task.host_index]
    values = (tasks.index(task), len(tasks), local.index(task), master.strip("[]"), port)
    return dict(zip(TORCH_VARIABLES, map(str, values), strict=True))


def make_tf_config(tasks: Sequence[PlacedProcess], task: PlacedProcess) -> dict[str, str]:
    """The TF_CONFIG that makes a process a task."""
    cluster: dict[str, list[str]] = {}
    for other in tasks:
        cluster.setdefault(other.role, []).append(other.address)
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task.role, "index": task.index}})}
