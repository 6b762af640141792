"""Training on the nodes of a Ray cluster: an actor on each node starts the command that a user would start there.

Each attempt uses the nodes that the cluster has then. If one of them fails, the next attempt begins from the newest
checkpoint. The chief's host is the node that runs rank 0. Every attempt keeps this node if it can, since the run
directory may be on its disk. A placement group is Ray's reservation of resources; each of its bundles is the part on
one node.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from math import ceil, inf
from pathlib import Path
from typing import cast

import ray
from ray import ObjectRef, ObjectRefGenerator
from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from common.cluster.discovery import count_used_nodes
from common.cluster.engines.ray import RayNodeInfo, count_on_every_node, list_usable_nodes
from common.cluster.ray_node import NodeActor
from common.cluster.supervisor import Outcome
from common.cluster.topology import RayNodes, choose_job_port
from common.config.clusters import ScheduledSettings
from common.config.command_line import list_arguments_without
from common.config.resolve import DEFAULT_REPLICAS
from common.config.schema import Config
from common.config.strategies import StrategySettings
from common.errors import FAILURE, USER_ERROR, Interrupted, PeerTimeout, UserError, one_line
from common.run.directory import choose_run_dir
from common.run.summary import RESTARTS_VARIABLE
from common.training.stop import SIGNALS, Stop

log = logging.getLogger("lockstep")

LOWEST_PORT = 20_000  # Ray's own processes listen on lower ports
RESERVE_SECONDS = 10.0  # how long Ray may take to reserve resources before the nodes are counted again
END_SECONDS = 60.0  # time for the other commands to end after the first; a command notices a lost host in 30 s
POLL_SECONDS = 0.2
NODE_SHARE = 0.001  # amount of a node's resource node:ADDRESS; pins a bundle to that node


@dataclass(frozen=True)
class NodeCommand:
    """The command that is started on every node.

    Attributes:
        module: the module that trains, as `python -m` takes it.
        arguments: the arguments that all nodes have in common.
        directory: the working directory; None for the actor's.
        port: the first of the ports that the processes of a node listen on.
        strategy: the settings of the strategy, with the replicas that the user asked for.
        uses_gpus: whether the run trains on GPUs.
        timeout: seconds to wait for free resources in the cluster.
    """

    module: str
    arguments: list[str]
    directory: str | None
    port: int
    strategy: StrategySettings
    uses_gpus: bool
    timeout: float


def run_on_ray(config: Config, nodes: RayNodes, framework: str) -> int:
    """Train on the cluster to which this process is connected. Return the exit code of the command.

    Raises:
        Interrupted: a signal arrived while an attempt waited for its nodes or actors.
        PeerTimeout: the cluster has no free resources.
        UserError: the run directory would be lost at the end of the Ray job.
    """
    stop, restarts, chief_host = Stop(), 0, ray.util.get_node_ip_address()
    try:
        command = _make_command(config, nodes, framework)
        while True:
            with _start_actors(command, chief_host, stop) as actors:
                chief_host, outcome = _run_attempt(
                    actors, chief_host, command, {RESTARTS_VARIABLE: str(restarts)}, stop
                )
            if outcome.exit_code != FAILURE or restarts == config.train.max_restarts:
                if outcome.problem:
                    print(f"failed: {outcome.problem}", file=sys.stderr)
                return outcome.exit_code
            log.warning("%s; restarting from the newest checkpoint", outcome.problem)
            restarts += 1
    finally:
        ray.shutdown()  # before `restore`: ray.shutdown itself replaces the handler of SIGTERM
        stop.restore()


def _make_command(config: Config, nodes: RayNodes, framework: str) -> NodeCommand:
    assert isinstance(config.cluster, ScheduledSettings)
    ray_context = ray.get_runtime_context()
    is_copied = bool(ray_context.runtime_env.get("working_dir"))  # ray job submit --working-dir has copied it
    if is_copied and not Path(config.run_dir or "").expanduser().is_absolute():
        raise UserError(
            f"run_dir={config.run_dir}: would be in Ray's copy of the working directory, which Ray deletes; use an "
            "absolute path on storage that lasts"
        )
    run_dir = config.run_dir or choose_run_dir(config, framework, f"{datetime.now():%Y%m%d-%H%M%S}")
    job = int.from_bytes(bytes.fromhex(ray_context.get_job_id()), "little")
    return NodeCommand(
        module=f"{framework}_impl.train",
        arguments=[
            *list_arguments_without("cluster", "run_dir", "train.max_restarts"),
            f"run_dir={Path(run_dir).expanduser().absolute()}",
            "train.max_restarts=0",  # this process restarts the commands
            f"cluster.timeout={config.cluster.timeout}",
        ],
        directory=None if is_copied else str(Path.cwd()),
        port=config.cluster.port or choose_job_port(str(job), LOWEST_PORT),
        strategy=replace(config.strategy, replicas=nodes.replicas),
        uses_gpus=nodes.gpus > 0,
        timeout=config.cluster.timeout,
    )


@contextmanager
def _start_actors(command: NodeCommand, chief_host: str, stop: Stop) -> Iterator[list[ActorHandle]]:
    """Start an actor on each of the nodes that the cluster has now, and end them after the body."""
    group, bundles = _reserve_nodes(command, chief_host, stop)
    try:
        actor_class = ray.remote(NodeActor)
        actors = [
            actor_class.options(
                max_concurrency=2,  # `run` and `stop` at the same time
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
            ).remote()
            for index, bundle in enumerate(bundles)
        ]
        yield cast(list[ActorHandle], actors)
    finally:
        remove_placement_group(group)


def _reserve_nodes(command: NodeCommand, chief_host: str, stop: Stop) -> tuple[PlacementGroup, list[dict[str, float]]]:
    """Reserve resources on as many nodes as the run uses, `chief_host` among them if it is still a node.

    Return the reservation, and the amount of each resource on each of its nodes. The nodes are counted again if they
    have no free resources: Ray takes a while to notice that a node was lost.
    """
    deadline = time.monotonic() + command.timeout
    while True:
        bundles = _plan_bundles(command.strategy, command.uses_gpus, chief_host, list_usable_nodes())
        group = placement_group(bundles, strategy="STRICT_SPREAD")  # each bundle on another node
        if _wait([group.ready()], min(RESERVE_SECONDS, command.timeout), stop):
            return group, bundles
        remove_placement_group(group)
        if time.monotonic() > deadline:
            kinds = {kind: number for kind, number in bundles[0].items() if not kind.startswith("node:")}
            resources = " and ".join(f"{number:g} {kind}" for kind, number in kinds.items())
            raise PeerTimeout(
                f"cluster.timeout={command.timeout:g}: the Ray cluster has no {len(bundles)} node(s) with {resources} "
                "free; lower strategy.replicas, or wait for other jobs to end"
            )


def _wait(results: Sequence[ObjectRef], timeout: float, stop: Stop) -> bool:
    """Return whether all results arrive within `timeout` seconds. Raise Interrupted."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if len(ray.wait(list(results), num_returns=len(results), timeout=POLL_SECONDS)[0]) == len(results):
            return True
        if stop.signum is not None:
            raise Interrupted(stop.signum)
    return False


def _plan_bundles(
    strategy: StrategySettings, uses_gpus: bool, chief_host: str, nodes: list[RayNodeInfo]
) -> list[dict[str, float]]:
    """Return the resources to reserve on each node of a run. A run never moves from GPUs to CPUs.

    If no GPUs are left, the run still asks for GPUs, and so waits for them.
    """
    node_count = max(1, count_used_nodes(strategy, len(nodes)))
    gpus = count_on_every_node(nodes, "GPU") if uses_gpus else 0
    replicas_per_node = ceil(strategy.replicas / node_count) if strategy.replicas else gpus or DEFAULT_REPLICAS
    cpus = max(1, min(replicas_per_node, count_on_every_node(nodes, "CPU")))
    resources = {"CPU": cpus, **({"GPU": replicas_per_node} if uses_gpus else {})}
    bundles = [dict[str, float](resources) for _ in range(node_count)]
    if chief_host in {node["NodeManagerAddress"] for node in nodes}:
        bundles[0][f"node:{chief_host}"] = NODE_SHARE
    return bundles


def _run_attempt(
    actors: list[ActorHandle], chief_host: str, command: NodeCommand, environment: Mapping[str, str], stop: Stop
) -> tuple[str, Outcome]:
    """Run the command on all nodes to its end, with the chief on `chief_host` if an actor is there.

    Return the host of the chief, and how the attempt ended.
    """
    results: list[ObjectRef[str]] = [actor.address.remote() for actor in actors]
    try:
        if not _wait(results, command.timeout, stop):
            return chief_host, Outcome(FAILURE, f"an actor did not start within {command.timeout:g} s")
        addresses: list[str] = ray.get(results)
    except RayError as error:
        return chief_host, Outcome(FAILURE, f"an actor did not start ({one_line(error)})")
    nodes = sorted(zip(addresses, actors, strict=True), key=lambda node: node[0] != chief_host)
    hosts = [host for host, _ in nodes]
    log.info("on %d node(s) of the Ray cluster: %s", len(hosts), ", ".join(hosts))
    cluster_arguments = ["cluster=local"]  # replaced below if the run has several nodes
    hosts_by_output: dict[ObjectRefGenerator, str] = {}
    for index, (host, actor) in enumerate(nodes):
        if len(hosts) > 1:
            cluster_arguments = ["cluster=hosts", f"cluster.hosts=[{','.join(hosts)}]", f"cluster.node={index}"]
            cluster_arguments += [f"cluster.port={command.port}"]
        arguments = [*command.arguments, *cluster_arguments]
        hosts_by_output[actor.run.remote(command.module, arguments, command.directory, environment)] = host
    exit_codes = _print_until_end(
        hosts_by_output, hosts[0], lambda signum: [actor.stop.remote(signum) for actor in actors], stop
    )
    return hosts[0], _conclude(hosts, exit_codes, stop)


def _print_until_end(
    hosts_by_output: dict[ObjectRefGenerator, str], chief_host: str, send_signal: Callable[[int], object], stop: Stop
) -> dict[str, int]:
    """Print the output of the commands until all have ended.

    Args:
        hosts_by_output: the host of each command, by the generator of its output.
        chief_host: the host of the chief, whose output has no prefix.
        send_signal: sends a signal to all commands.
        stop: records the signals that this process receives.

    Returns:
        The exit codes by host, without the hosts that were lost or did not end in time.
    """
    exit_codes: dict[str, int] = {}
    deadline, is_stopping = inf, False
    while hosts_by_output and time.monotonic() < deadline:
        if stop.signum is not None and not is_stopping:
            send_signal(stop.signum)
            is_stopping, deadline = True, min(deadline, time.monotonic() + END_SECONDS)
        ready: list[ObjectRefGenerator] = ray.wait(list(hosts_by_output), timeout=POLL_SECONDS)[0]
        for output in ready:
            host = hosts_by_output[output]
            try:
                message = ray.get(next(output))  # an OutputLine, or at last the exit code
            except RayTaskError:  # a bug of Lockstep
                raise
            except (StopIteration, RayError):
                del hosts_by_output[output]
                deadline = min(deadline, time.monotonic() + END_SECONDS)
                continue
            if isinstance(message, int):
                exit_codes[host] = message
            else:
                is_error, line = message
                prefix = "" if host == chief_host else f"{host}: "
                print(prefix + line, end="", file=sys.stderr if is_error else sys.stdout, flush=True)
    return exit_codes


def _conclude(hosts: list[str], exit_codes: Mapping[str, int], stop: Stop) -> Outcome:
    """Return the outcome of an attempt from the exit codes by host. hosts: all hosts, the chief's first."""
    if exit_codes.get(hosts[0]) == 0:  # the chief has written the results; failures of others come after the training
        return Outcome(0, None)
    if USER_ERROR in exit_codes.values():
        return Outcome(USER_ERROR, None)
    if stop.signum is not None:
        return Outcome(128 + stop.signum, None)
    if interrupted := [exit_code for exit_code in exit_codes.values() if exit_code - 128 in SIGNALS]:
        return Outcome(interrupted[0], None)
    if lost := [host for host in hosts if host not in exit_codes]:
        return Outcome(FAILURE, f"node {lost[0]} of the Ray cluster was lost")
    # A killed command, whose exit code is above 128, is more likely the cause than a command that failed.
    host = max(hosts, key=lambda host: exit_codes[host])
    return Outcome(FAILURE, f"the command on {host} ended with exit code {exit_codes[host]}")
