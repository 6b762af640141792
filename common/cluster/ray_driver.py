"""Trains on the nodes of a Ray cluster: an actor on each starts the command that a user would start there.

Each attempt takes the nodes that the cluster has then. Where one fails, the next begins from the newest checkpoint.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from math import ceil, inf
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from common.cluster.discovery import count_used_nodes
from common.cluster.engines.ray import fewest, list_usable_nodes
from common.cluster.ray_node import NodeActor
from common.cluster.supervisor import Outcome
from common.cluster.topology import RayNodes, choose_job_port
from common.config.clusters import ScheduledSettings
from common.config.command_line import list_arguments_without
from common.config.schema import Config
from common.config.strategies import StrategySettings
from common.errors import FAILURE, USER_ERROR, Interrupted, PeerTimeout, UserError, one_line
from common.run.directory import default_run_dir
from common.run.summary import RESTARTS
from common.training.stop import SIGNALS, Stop

log = logging.getLogger("lockstep")

LOWEST_PORT = 20_000  # Ray's own processes listen below
ROOM_SECONDS = 10.0  # to wait for room, before the nodes of the cluster are counted again
END_SECONDS = 60.0  # for the other nodes' commands, once one has ended: they notice a silent host after 30 s
POLL_SECONDS = 0.2
ANY = 0.001  # of the resource node:ADDRESS, of which each node has 1


@dataclass(frozen=True)
class NodeCommand:
    """What is started on every node.

    directory: None for the actor's own. gpus: whether it trains on GPUs. timeout: how long to wait for room in the
    cluster, in seconds.
    """

    module: str
    arguments: list[str]
    directory: str | None
    port: int
    strategy: StrategySettings
    gpus: bool
    timeout: float


def run_on_ray(config: Config, found: RayNodes, framework: str) -> int:
    """Run a training on the cluster that this process is connected to. Returns the exit code of the command.

    Raises PeerTimeout where the cluster has no room, and UserError.
    """
    stop, restarts, chief = Stop(), 0, ray.util.get_node_ip_address()
    try:
        command = _command(config, found, framework)
        while True:
            with _actors(command, chief, stop) as actors:
                chief, outcome = _attempt(actors, chief, command, {RESTARTS: str(restarts)}, stop)
            if outcome.exit_code != FAILURE or restarts == config.train.max_restarts:
                if outcome.problem:
                    print(f"failed: {outcome.problem}", file=sys.stderr)
                return outcome.exit_code
            log.warning("%s; restarting from the newest checkpoint", outcome.problem)
            restarts += 1
    finally:
        ray.shutdown()  # which has a handler for SIGTERM of its own
        stop.restore()


def _command(config: Config, found: RayNodes, framework: str) -> NodeCommand:
    assert isinstance(config.cluster, ScheduledSettings)
    context = ray.get_runtime_context()
    copied = bool(context.runtime_env.get("working_dir"))
    if copied and not Path(config.run_dir or "").expanduser().is_absolute():
        raise UserError(
            f"run_dir={config.run_dir}: would be in Ray's copy of the working directory, which Ray deletes; give a "
            "full path, on storage that lasts"
        )
    run_dir = config.run_dir or default_run_dir(config, framework, f"{datetime.now():%Y%m%d-%H%M%S}")
    job = int.from_bytes(bytes.fromhex(context.get_job_id()), "little")
    return NodeCommand(
        f"{framework}_impl.train",
        [
            *list_arguments_without("cluster", "run_dir", "train.max_restarts"),
            f"run_dir={Path(run_dir).expanduser().absolute()}",
            "train.max_restarts=0",  # they are restarted from here
            f"cluster.timeout={config.cluster.timeout}",
        ],
        None if copied else os.getcwd(),
        config.cluster.port or choose_job_port(str(job), LOWEST_PORT),
        replace(config.strategy, replicas=found.replicas),
        found.gpus > 0,
        config.cluster.timeout,
    )


@contextmanager
def _actors(command: NodeCommand, chief: str, stop: Stop) -> Iterator[list[Any]]:
    """An actor on each of the nodes that the cluster has now; they are ended after the body."""
    group, bundles = _place(command, chief, stop)
    try:
        yield [
            ray.remote(NodeActor)
            .options(
                max_concurrency=2,
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
            )
            .remote()
            for index, bundle in enumerate(bundles)
        ]
    finally:
        remove_placement_group(group)


def _place(command: NodeCommand, chief: str, stop: Stop) -> tuple[PlacementGroup, list[dict[str, float]]]:
    """Reserve resources on as many nodes as the run uses, `chief` among them if it is there.

    Counts the nodes again where they have no room: Ray takes a while to find that one was lost.
    """
    deadline = time.monotonic() + command.timeout
    while True:
        bundles = _room(command.strategy, command.gpus, chief, list_usable_nodes())
        group = placement_group(bundles, strategy="STRICT_SPREAD")
        if _wait([group.ready()], min(ROOM_SECONDS, command.timeout), stop):
            return group, bundles
        remove_placement_group(group)
        if time.monotonic() > deadline:
            kinds = {kind: number for kind, number in bundles[0].items() if not kind.startswith("node:")}
            wanted = " and ".join(f"{number:g} {kind}" for kind, number in kinds.items())
            raise PeerTimeout(
                f"cluster.timeout={command.timeout:g}: the Ray cluster has no {len(bundles)} node(s) with {wanted} "
                "free; lower strategy.replicas, or wait for other jobs to end"
            )


def _wait(awaited: list[Any], timeout: float, stop: Stop) -> bool:
    """Whether all are there within so many seconds. Raises Interrupted."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if len(ray.wait(awaited, num_returns=len(awaited), timeout=POLL_SECONDS)[0]) == len(awaited):
            return True
        if stop.signum is not None:
            raise Interrupted(stop.signum)
    return False


def _room(strategy: StrategySettings, gpus: bool, chief: str, nodes: list[dict[str, Any]]) -> list[dict[str, float]]:
    """What a run asks for on each of its nodes, of those that there are; one on GPUs never continues on CPUs."""
    count = max(1, count_used_nodes(strategy, len(nodes)))
    replicas = ceil(strategy.replicas / count) if strategy.replicas else fewest(nodes, "GPU") or 2
    resources = {"CPU": max(1, min(replicas, fewest(nodes, "CPU"))), **({"GPU": replicas} if gpus else {})}
    bundles = [dict[str, float](resources) for _ in range(count)]
    if chief in {node["NodeManagerAddress"] for node in nodes}:
        bundles[0][f"node:{chief}"] = ANY  # with which it can be placed nowhere else
    return bundles


def _attempt(
    actors: list[Any], chief: str, command: NodeCommand, environment: Mapping[str, str], stop: Stop
) -> tuple[str, Outcome]:
    """Run the command on all nodes to its end, the chief's on host `chief` where there is one. Returns its host."""
    awaited = [actor.address.remote() for actor in actors]
    try:
        if not _wait(awaited, command.timeout, stop):
            return chief, Outcome(FAILURE, f"an actor did not start within {command.timeout:g} s")
        addresses = ray.get(awaited)
    except RayError as error:
        return chief, Outcome(FAILURE, f"an actor did not start ({one_line(error)})")
    nodes = sorted(zip(addresses, actors, strict=True), key=lambda node: node[0] != chief)
    hosts = [host for host, _ in nodes]
    log.info("on %d node(s) of the Ray cluster: %s", len(hosts), ", ".join(hosts))
    place = ["cluster=local"]
    running = {}
    for node, (host, actor) in enumerate(nodes):
        if len(hosts) > 1:
            place = ["cluster=hosts", f"cluster.hosts=[{','.join(hosts)}]", f"cluster.node={node}"]
            place += [f"cluster.port={command.port}"]
        arguments = [*command.arguments, *place]
        running[actor.run.remote(command.module, arguments, command.directory, environment)] = host
    codes = _print_until_end(running, hosts[0], lambda signum: [each.stop.remote(signum) for each in actors], stop)
    return hosts[0], _outcome(hosts, codes, stop)


def _print_until_end(running: dict[Any, str], chief: str, tell: Callable[[int], object], stop: Stop) -> dict[str, int]:
    """Print what the commands print until all have ended. Returns their exit codes; none for a node that was lost.

    running: the host of each command, by the generator of what it prints. tell: sends all of them a signal.
    """
    codes: dict[str, int] = {}
    deadline, told = inf, False
    while running and time.monotonic() < deadline:
        if stop.signum is not None and not told:
            tell(stop.signum)
            told, deadline = True, min(deadline, time.monotonic() + END_SECONDS)
        ready: list[Any] = ray.wait(list(running), timeout=POLL_SECONDS)[0]
        for lines in ready:
            host = running[lines]
            try:
                said = ray.get(next(lines))
            except RayTaskError:  # a mistake of ours
                raise
            except (StopIteration, RayError):
                del running[lines]
                deadline = min(deadline, time.monotonic() + END_SECONDS)
                continue
            if isinstance(said, int):
                codes[host] = said
            else:
                is_error, line = said
                prefix = "" if host == chief else f"{host}: "
                print(prefix + line, end="", file=sys.stderr if is_error else sys.stdout, flush=True)
    return codes


def _outcome(hosts: list[str], codes: Mapping[str, int], stop: Stop) -> Outcome:
    """How an attempt ended, from the exit codes of its nodes."""
    if codes.get(hosts[0]) == 0:
        return Outcome(0, None)
    if USER_ERROR in codes.values():
        return Outcome(USER_ERROR, None)
    if stop.signum is not None:
        return Outcome(128 + stop.signum, None)
    if stopped := [code for code in codes.values() if code - 128 in SIGNALS]:
        return Outcome(stopped[0], None)
    if lost := [host for host in hosts if host not in codes]:
        return Outcome(FAILURE, f"node {lost[0]} of the Ray cluster was lost")
    host = max(hosts, key=lambda host: codes[host])  # one that was killed is more likely the cause
    return Outcome(FAILURE, f"the command on {host} ended with exit code {codes[host]}")
