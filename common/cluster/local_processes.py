"""The processes of a run that this host starts."""

from collections.abc import Sequence
from dataclasses import dataclass

from common.cluster.topology import HostGroup, PlacedProcess, place_processes
from common.hardware import count_cores
from common.run.context import RunContext


@dataclass(frozen=True)
class LocalProcesses:
    """The processes of a run on this host.

    Attributes:
        all_processes: the processes of the run on all hosts, in the order of their ranks.
        local: the processes of this host.
        workers: the processes of this host that compute gradients: their role is "worker".
    """

    all_processes: list[PlacedProcess]
    local: list[PlacedProcess]
    workers: list[PlacedProcess]

    @property
    def threads(self) -> int:
        """Return the number of threads for each process, so that the workers share the cores of the host."""
        return max(1, count_cores() // max(1, len(self.workers)))


def place_local_processes(context: RunContext, hosts: HostGroup, ports: Sequence[int]) -> LocalProcesses:
    """Place the processes of a run on its hosts, and select this host's.

    ports: the ports of a host; its n-th process listens on the n-th port.
    """
    all_processes = place_processes(hosts.hosts, context.config.strategy.roles, ports)
    local = [process for process in all_processes if process.host_index == hosts.host_index]
    return LocalProcesses(all_processes, local, [process for process in local if process.role == "worker"])
