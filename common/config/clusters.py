"""The kinds of clusters. A new kind is a schema here, an engine in common/cluster/engines, and a YAML file."""

from dataclasses import dataclass
from typing import ClassVar

from common.config.keys import HOST, key
from common.errors import UserError


@dataclass(frozen=True)
class ClusterSettings:
    """Where a run's processes are. `timeout`: how long to wait for a peer."""

    engine: ClassVar[str]  # the module whose `discover` says which hosts take part

    kind: str = key(HOST)
    timeout: float = key(HOST, at_least=1, unit="seconds")

    def check(self) -> None:
        """Raise UserError for values that do not fit together."""


@dataclass(frozen=True)
class LocalSettings(ClusterSettings):
    """This machine; a process that torchrun or TF_CONFIG made part of a cluster joins that one."""

    engine = "common.cluster.engines.local"


@dataclass(frozen=True)
class EnvSettings(ClusterSettings):
    """As torchrun's variables or TF_CONFIG say."""

    engine = "common.cluster.engines.env"


@dataclass(frozen=True)
class HostsSettings(ClusterSettings):
    """The same command on every host. `hosts`: their addresses; `node`: the index of this one.

    `port` is the first of the ports that the processes of a host listen on.
    """

    engine = "common.cluster.engines.hosts"

    hosts: list[str] = key(HOST)
    node: int = key(HOST, at_least=0)
    port: int = key(HOST, at_least=1024, at_most=65000)

    def check(self) -> None:
        """Raise UserError where there are no hosts, this one is not among them, or one is named twice."""
        if not self.hosts:
            raise UserError("cluster.hosts: has no value; give cluster.hosts=...")
        if self.node >= len(self.hosts):
            raise UserError(f"cluster.node={self.node}: there are hosts 0 to {len(self.hosts) - 1}")
        if len(set(self.hosts)) < len(self.hosts):
            raise UserError("cluster.hosts: a host is named twice; name each once, and raise the replicas")


@dataclass(frozen=True)
class ScheduledSettings(ClusterSettings):
    """The nodes that a scheduler has given to a job, and on each of which it starts the command."""

    port: int | None = key(HOST, at_least=1024, at_most=65000, null="for one that the job's id gives")


@dataclass(frozen=True)
class SlurmSettings(ScheduledSettings):
    """The nodes of a Slurm job."""

    engine = "common.cluster.engines.slurm"


@dataclass(frozen=True)
class SkyPilotSettings(ScheduledSettings):
    """The nodes of a SkyPilot task."""

    engine = "common.cluster.engines.skypilot"


@dataclass(frozen=True)
class KubernetesSettings(ScheduledSettings):
    """The pods of a Kubernetes job."""

    engine = "common.cluster.engines.kubernetes"


@dataclass(frozen=True)
class RaySettings(ScheduledSettings):
    """The nodes of a Ray cluster. `address`: of its head node, host:port."""

    engine = "common.cluster.engines.ray"

    address: str = key(HOST)


@dataclass(frozen=True)
class AutoSettings(ScheduledSettings):
    """Whatever the environment shows."""

    engine = "common.cluster.engines.auto"


CLUSTERS: dict[str, type[ClusterSettings]] = {
    "local": LocalSettings,
    "env": EnvSettings,
    "hosts": HostsSettings,
    "slurm": SlurmSettings,
    "skypilot": SkyPilotSettings,
    "kubernetes": KubernetesSettings,
    "ray": RaySettings,
    "auto": AutoSettings,
}
