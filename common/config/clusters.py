"""Settings of the kinds of clusters: which hosts have the processes of a run.

Each field is a key of the config, such as cluster.timeout. `key(HOST, ...)` declares its limits, and that it may differ
from host to host. The files in conf/cluster have the default values and explain the keys.

A new kind needs a schema here, an engine in common/cluster/engines, and a YAML file in conf/cluster.
"""

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from common.config.keys import HOST, key
from common.errors import UserError


@dataclass(frozen=True)
class ClusterSettings:
    """Settings that every kind of cluster has. `timeout` is how long a process waits for another."""

    engine: ClassVar[str]  # the module whose function `discover` finds the hosts and processes of the run

    kind: str = key(HOST)
    timeout: float = key(HOST, at_least=1, unit="seconds")

    def check(self) -> None:
        """Raise UserError if values do not fit together."""


@dataclass(frozen=True)
class LocalSettings(ClusterSettings):
    """This machine. torchrun's variables or TF_CONFIG take precedence."""

    engine = "common.cluster.engines.local"


@dataclass(frozen=True)
class EnvSettings(ClusterSettings):
    """The cluster that torchrun's variables or TF_CONFIG describe."""

    engine = "common.cluster.engines.env"


@dataclass(frozen=True)
class HostsSettings(ClusterSettings):
    """Hosts on which the user starts the same command.

    `hosts` has their addresses, and `node` is the index of this host. `port` is the first of the ports that the
    processes of a host listen on.
    """

    engine = "common.cluster.engines.hosts"

    hosts: list[str] = key(HOST)
    node: int = key(HOST, at_least=0)
    port: int = key(HOST, at_least=1024, at_most=65000)

    @override
    def check(self) -> None:
        if not self.hosts:
            raise UserError("cluster.hosts: has no value; give cluster.hosts=...")
        if self.node >= len(self.hosts):
            raise UserError(f"cluster.node={self.node}: there are hosts 0 to {len(self.hosts) - 1}")
        if len(set(self.hosts)) < len(self.hosts):
            raise UserError("cluster.hosts: a host is named twice; name each once, and raise the replicas")


@dataclass(frozen=True)
class ScheduledSettings(ClusterSettings):
    """Nodes that a scheduler assigns to a job. The scheduler starts the command on each of them."""

    port: int | None = key(HOST, at_least=1024, at_most=65000, null="for one computed from the job's id")


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
    """The nodes of a Ray cluster. `address` is host:port of its head node."""

    engine = "common.cluster.engines.ray"

    address: str = key(HOST)


@dataclass(frozen=True)
class AutoSettings(ScheduledSettings):
    """Choose the first that exists: torchrun or TF_CONFIG, Slurm, SkyPilot, Kubernetes, Ray; otherwise this machine.

    The class has the settings of a scheduler, because it may choose one.
    """

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
