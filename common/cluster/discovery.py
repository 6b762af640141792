"""Who takes part in a run: what the engine of the config's cluster finds, and a config that agrees with it."""

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
from common.config.validate import check_config
from common.errors import UserError


def compose_config(framework: str, overrides: Sequence[str], environment: Mapping[str, str]) -> Config:
    """The config that a training with these overrides has. Raises UserError, and Hydra's and OmegaConf's errors."""
    with initialize_config_dir(CONF, version_base="1.3"):
        composed = compose("train", overrides=list(overrides))
    return discover_cluster(parse_config(composed), framework, environment)[0]


def discover_cluster(
    config: Config, framework: str, environment: Mapping[str, str]
) -> tuple[Config, DiscoveredCluster]:
    """Check a config, find the hosts, and fill in the config's replicas. Raises UserError.

    framework: "torch" or "tf". Returns a ClusterMember if a scheduler has started this process as one of the run's, and
    RayNodes if the run's commands are to be started on other machines.
    """
    check_config(config, framework)
    engine = cast(Engine, import_module(config.cluster.engine))
    found = engine.discover(config.cluster, config.strategy.kind, framework, environment)
    if isinstance(found, ClusterMember):
        if config.train.max_restarts:
            raise UserError(
                f"train.max_restarts={config.train.max_restarts}: {found.source} says that this process was started "
                "by another launcher, which has to restart it; set it to 0, and use resume=auto"
            )
        return resolve_config(config, found=found.roles, source=found.source), found
    if isinstance(found, RayNodes):
        resolved = resolve_config(config, nodes_for(config.strategy, found.nodes), gpus=found.gpus)
        strategy = resolved.strategy if resolved.strategy.one_process else config.strategy
        return resolved, replace(found, replicas=strategy.replicas)
    config = resolve_config(config, len(found.hosts))
    if found.is_multi_host:
        if idle := _idle(found.hosts, config.strategy):
            raise UserError(
                f"strategy.replicas={config.strategy.replicas}: host {idle[0]} would have no process; raise it or name "
                "fewer hosts"
            )
        check_ports(_ports_of(config, framework, found))
    return config, found


def nodes_for(strategy: StrategySettings, available: int) -> int:
    """How many of the available nodes a run uses: as many as would each have a process."""
    if strategy.one_process:
        return 1
    if strategy.replicas is None:
        return available
    return max((count for count in range(1, available + 1) if not _idle([""] * count, strategy)), default=0)


def _idle(hosts: Sequence[str], strategy: StrategySettings) -> list[str]:
    """The hosts that would have no process."""
    used = {task.host_index for task in place_processes(hosts, strategy.roles, [0] * strategy.processes)}
    return [host for node, host in enumerate(hosts) if node not in used]


def _ports_of(config: Config, framework: str, nodes: HostGroup) -> list[int]:
    """The ports of this host that a run listens on. Of PyTorch's ranks only the first listens on its own."""
    strategy = config.strategy
    mine = [
        task
        for task in place_processes(nodes.hosts, strategy.roles, nodes.ports)
        if task.host_index == nodes.host_index
    ]
    ports = [int(task.address.rpartition(":")[2]) for task in mine]
    if framework == "torch":
        ports = ports[:1] if nodes.host_index == 0 else []
    if nodes.host_index == 0:
        ports += [nodes.monitor_port(strategy.processes), nodes.stop_port(strategy.processes)]
    return ports
