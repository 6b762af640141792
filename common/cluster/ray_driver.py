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

from common.cluster.discover import nodes_for
from common.cluster.engines.ray import fewest, usable_nodes
from common.cluster.ray_node import Node
from common.cluster.supervisor import Outcome
from common.cluster.topology import Remote, port_of_job
from common.config.clusters import Scheduled
from common.config.command_line import arguments_without
from common.config.schema import Config
from common.config.strategies import Strategy
from common.errors import FAILURE, USER_ERROR, Absent, Interrupted
from common.run.directory import default_run_dir
from common.run.summary import RESTARTS
from common.training.stop import Stop

log = logging.getLogger("lockstep")

LOWEST_PORT = 20_000  # Ray's own processes listen below
ROOM_SECONDS = 10.0  # before the nodes of the cluster are counted again
END_SECONDS = 60.0  # for the other nodes' commands, once one has ended: they notice a silent host after 30 s
POLL_SECONDS = 0.2
LEAST = 0.001  # of a resource


@dataclass(frozen=True)
class Command:
    """What is started on every node. timeout: how long to wait for room in the cluster, in seconds."""

    module: str
    arguments: list[str]
    directory: str | None
    port: int
    timeout: float


def drive(config: Config, found: Remote, framework: str) -> int:
    """Run a training on the cluster that this process is connected to. Returns the exit code of the command.

    Raises Absent where the cluster has no room.
    """
    assert isinstance(config.cluster, Scheduled)
    run_dir = config.run_dir or default_run_dir(config, framework, f"{datetime.now():%Y%m%d-%H%M%S}")
    context = ray.get_runtime_context()
    job = int.from_bytes(bytes.fromhex(context.get_job_id()), "little")
    command = Command(
        f"{framework}_impl.train",
        [
            *arguments_without("cluster", "run_dir", "train.max_restarts"),
            f"run_dir={Path(run_dir).expanduser().absolute()}",
            "train.max_restarts=0",  # they are restarted from here
            f"cluster.timeout={config.cluster.timeout}",
        ],
        None if context.runtime_env.get("working_dir") else os.getcwd(),
        config.cluster.port or port_of_job(str(job), LOWEST_PORT),
        config.cluster.timeout,
    )
    stop, restarts, chief = Stop(), 0, ray.util.get_node_ip_address()
    try:
        while True:
            with _actors(replace(config.strategy, replicas=found.replicas), chief, command.timeout, stop) as actors:
                chief, outcome = _attempt(actors, chief, command, {RESTARTS: str(restarts)}, stop)
            if outcome.exit_code != FAILURE or restarts == config.train.max_restarts:
                return outcome.exit_code
            log.warning("%s; restarting from the newest checkpoint", outcome.problem)
            restarts += 1
    finally:
        stop.restore()
        ray.shutdown()


@contextmanager
def _actors(strategy: Strategy, chief: str, timeout: float, stop: Stop) -> Iterator[list[Any]]:
    """An actor on each of the nodes that the cluster has now; they and what they started have ended after the body."""
    group, bundles = _place(strategy, chief, timeout, stop)
    try:
        yield [
            ray.remote(Node)
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


def _place(strategy: Strategy, chief: str, timeout: float, stop: Stop) -> tuple[PlacementGroup, list[dict[str, float]]]:
    """Reserve resources on as many nodes as the run uses, `chief` among them if it is there.

    Counts the nodes again where they have no room: Ray takes a while to find that one was lost.
    """
    deadline = time.monotonic() + timeout
    while True:
        bundles = _room(strategy, chief, usable_nodes())
        group = placement_group(bundles, strategy="STRICT_SPREAD")
        ready, end = group.ready(), time.monotonic() + ROOM_SECONDS
        while time.monotonic() < end:
            if ray.wait([ready], timeout=POLL_SECONDS)[0]:
                return group, bundles
            if stop.signum is not None:
                raise Interrupted(stop.signum)
        remove_placement_group(group)
        if time.monotonic() > deadline:
            wanted = " and ".join(f"{number:g} {kind}" for kind, number in bundles[-1].items())
            raise Absent(
                f"cluster.timeout={timeout:g}: the Ray cluster has no {len(bundles)} nodes with {wanted} free; lower "
                "strategy.replicas, or wait for other jobs to end"
            )


def _room(strategy: Strategy, chief: str, nodes: list[dict[str, Any]]) -> list[dict[str, float]]:
    """What a run asks for on each of its nodes, of those that there are."""
    count, gpus = max(1, nodes_for(strategy, len(nodes))), fewest(nodes, "GPU")
    replicas = ceil(strategy.replicas / count) if strategy.replicas else gpus or 2
    resources = {"CPU": max(1, min(replicas, fewest(nodes, "CPU"))), **({"GPU": replicas} if gpus else {})}
    bundles = [dict[str, float](resources) for _ in range(count)]
    if chief in {node["NodeManagerAddress"] for node in nodes}:
        bundles[0][f"node:{chief}"] = LEAST  # every node has 1 of such a resource
    return bundles


def _attempt(
    actors: list[Any], chief: str, command: Command, environment: Mapping[str, str], stop: Stop
) -> tuple[str, Outcome]:
    """Run the command on all nodes to its end, the chief's on host `chief` where there is one. Returns its host."""
    try:
        addresses = ray.get([actor.address.remote() for actor in actors])
    except RayError as error:
        return chief, Outcome(FAILURE, f"a node of the Ray cluster was lost ({type(error).__name__})")
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
    codes = _follow(running, hosts[0], lambda signum: [actor.stop.remote(signum) for actor in actors], stop)
    return hosts[0], _outcome(hosts, codes, stop)


def _follow(running: dict[Any, str], chief: str, tell: Callable[[int], object], stop: Stop) -> dict[str, int]:
    """Print what the commands print until all have ended. Returns their exit codes; none for a node that was lost.

    running: what yields the lines of a command, and its host.
    """
    codes: dict[str, int] = {}
    deadline, told = inf, False
    while running and time.monotonic() < deadline:
        if stop.signum is not None and not told:
            tell(stop.signum)
            told = True
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
    if lost := [host for host in hosts if host not in codes]:
        return Outcome(FAILURE, f"node {lost[0]} of the Ray cluster was lost")
    return Outcome(max(codes.values()), f"the command on {hosts[0]} ended with exit code {codes[hosts[0]]}")
