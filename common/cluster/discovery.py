"""Discovery of the hosts and processes of a run, and the config resolved for them.

Each kind of cluster has an engine, a module that finds the hosts. A resolved config has no open value: its number of
replicas follows from the hosts and their GPUs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import cast

from hydra import compose, initialize_config_dir

from common.cluster.ports import check_ports
from common.cluster.topology import ClusterMember, DiscoveredCluster, Engine, HostGroup, RayNodes, place_processes
from common.config.compose import CONF, parse_config
from common.config.resolve import resolve_config
from common.config.schema import Config
from common.config.strategies import StrategySettings
from common.config.validate import check_config, count_gpus
from common.errors import UserError


def compose_config(framework: str, overrides: Sequence[str], environment: Mapping[str, str]) -> Config:
    """Return the config of a training run with these overrides. Raise UserError and errors of Hydra and OmegaConf."""
    with initialize_config_dir(CONF, version_base="1.3"):
        composed = compose("train", overrides=list(overrides))
    return discover_cluster(parse_config(composed), framework, environment)[0]


def discover_cluster(
    config: Config, framework: str, environment: Mapping[str, str]
) -> tuple[Config, DiscoveredCluster]:
    """Check a config, discover the cluster, and fill in the config's replicas. Raise UserError.

    Return the resolved config with a HostGroup if this process starts the processes of this host, a ClusterMember if
    another program has started this process as one of the run's, or RayNodes if Ray has to start the run's commands.
    """
    check_config(config, framework)
    engine = cast(Engine, import_module(config.cluster.engine))
    cluster = engine.discover(config.cluster, config.strategy.kind, framework, environment)
    if isinstance(cluster, ClusterMember):
        if config.train.max_restarts:
            raise UserError(
                f"train.max_restarts={config.train.max_restarts}: {cluster.source} says that this process was started "
                "by another launcher, which has to restart it; set it to 0, and use resume=auto"
            )
        return resolve_config(config, started=cluster.roles, source=cluster.source), cluster
    if isinstance(cluster, RayNodes):
        cluster = replace(cluster, gpus=count_gpus(config.train.device, cluster.gpus))
        resolved = resolve_config(config, count_used_nodes(config.strategy, cluster.count), gpus=cluster.gpus)
        # With several processes, each attempt counts the nodes again and resolves the replicas from the user's config.
        strategy = resolved.strategy if resolved.strategy.one_process else config.strategy
        return resolved, replace(cluster, replicas=strategy.replicas)
    config = resolve_config(config, len(cluster.hosts))
    if cluster.is_multi_host:
        if idle := _find_idle_hosts(cluster.hosts, config.strategy):
            raise UserError(
                f"strategy.replicas={config.strategy.replicas}: host {idle[0]} would have no process; raise it or name "
                "fewer hosts"
            )
        check_ports(_list_ports(config, framework, cluster))
    return config, cluster


def count_used_nodes(strategy: StrategySettings, available: int) -> int:
    """Return the number of nodes that a run uses: as many as possible, with at least one process on each."""
    if strategy.one_process:
        return 1
    if strategy.replicas is None:
        return available
    counts = range(1, available + 1)  # the names of the nodes do not matter below
    return max((count for count in counts if not _find_idle_hosts([""] * count, strategy)), default=0)


def _find_idle_hosts(hosts: Sequence[str], strategy: StrategySettings) -> list[str]:
    """Return the hosts that would have no process."""
    processes = place_processes(hosts, strategy.roles, [0] * strategy.processes)  # the ports do not matter
    used = {process.host_index for process in processes}
    return [host for index, host in enumerate(hosts) if index not in used]


def _list_ports(config: Config, framework: str, hosts: HostGroup) -> list[int]:
    """Return the ports of this host that a run listens on. Of PyTorch's ranks only the first one listens."""
    strategy = config.strategy
    processes = place_processes(hosts.hosts, strategy.roles, hosts.ports)
    addresses = [process.address for process in processes if process.host_index == hosts.host_index]
    ports = [int(address.rpartition(":")[2]) for address in addresses]
    if framework == "torch":
        ports = ports[:1] if hosts.host_index == 0 else []
    if hosts.host_index == 0:
        ports += [hosts.monitor_port(strategy.processes), hosts.stop_port(strategy.processes)]
    return ports
