"""Rendezvous: wait for the other processes of a run, and agree with them on what to train.

TensorFlow waits forever, or for an hour, for a task that never starts, and does not name it. So the tasks meet before
they start their servers: each one announces itself at the first one's address.
"""

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from common.cluster.agreement import collect_shared_settings, decode_error, describe_disagreement, encode_error
from common.cluster.network import find_address_towards
from common.cluster.processes import IS_REPLACEMENT, STOP_PORT
from common.cluster.stop_member import StopMember
from common.cluster.stop_server import StopServer
from common.errors import PeerTimeout, UserError
from common.run.context import RunContext

POLL_SECONDS = 0.1

Address = tuple[str, int, str]  # of the first task's StopServer


@dataclass(frozen=True)
class Group:
    """The tasks of a run. resolver: what TensorFlow's strategies take. channel: over which they agree on a stop.

    Both are None for one alone, and channel for a task that was started again.
    """

    rank: int
    world_size: int
    resolver: tf.distribute.cluster_resolver.TFConfigClusterResolver | None
    channel: StopServer | StopMember | None


def join_group(context: RunContext) -> Group:
    """Wait for the other tasks of a run, if it has any. Raises PeerTimeout and UserError as `rendezvous` does."""
    if context.config.strategy.one_process:
        return Group(0, 1, None, None)
    return rendezvous(context.config.cluster.timeout, collect_shared_settings(context))


def rendezvous(timeout: float, settings: Mapping[str, Any]) -> Group:
    """Wait for the other tasks of the cluster that TF_CONFIG describes.

    Raises PeerTimeout naming the tasks that did not arrive within `timeout` seconds, and UserError naming the settings
    in which a task differs from the first one.
    """
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster = resolver.cluster_spec().as_dict()
    order = sorted(cluster)  # chief, ps, worker
    tasks = [f"{role} {index}" for role in order for index in range(len(cluster[role]))]
    me = f"{resolver.task_type} {resolver.task_id}"
    first = "chief" if "chief" in cluster else "worker"
    rank = tasks.index(me)
    if IS_REPLACEMENT in os.environ:  # the others are past this
        return Group(rank, len(tasks), resolver, None)
    host, _, port = cluster[first][0].rpartition(":")
    host = host.strip("[]")
    if rank:
        problem, stop = _report(me, settings, f"{first} 0", (host, int(port)), timeout)
        if problem is not None:
            raise problem
        return Group(rank, len(tasks), resolver, StopMember(stop, me))
    channel = StopServer(find_address_towards(host), int(os.environ.get(STOP_PORT, 0)))
    problem = _receive(tasks[1:], me, settings, int(port), timeout, channel.address)
    if problem is not None:
        channel.close()
        raise problem
    channel.wait_for_members(len(tasks) - 1, timeout)
    return Group(rank, len(tasks), resolver, channel)


def _receive(
    others: list[str], me: str, settings: Mapping[str, Any], port: int, timeout: float, stop: Address
) -> UserError | None:
    """Wait for the other tasks. Returns why they cannot begin, or None; those that arrived get the same, and `stop`."""
    end = time.monotonic() + timeout
    missing = list(others)
    problem: UserError | None = None
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # the parent of a local run holds the port
        try:
            server.bind(("", port))
        except OSError as error:
            raise UserError(
                f"port {port} is in use on this host ({error.strerror}); give the cluster another"
            ) from error
        server.listen(len(others))
        arrived = []
        while missing and problem is None:
            server.settimeout(max(0.001, end - time.monotonic()))
            try:
                connection = stack.enter_context(server.accept()[0])
                connection.settimeout(1)
                name, theirs = _parse(connection.makefile().readline())
            except TimeoutError:
                if time.monotonic() > end:
                    absent = f"{', '.join(missing)} of {len(others) + 1} tasks"
                    problem = PeerTimeout(f"cluster.timeout={timeout:g}: {absent} did not arrive in time")
                continue
            except (OSError, ValueError):  # not a task of this run
                continue
            if difference := describe_disagreement(name, theirs, me, settings):
                problem = UserError(difference)
            arrived.append(connection)
            if name in missing:
                missing.remove(name)
        for connection in arrived:
            with suppress(OSError):  # it may have closed
                connection.sendall(json.dumps([encode_error(problem), stop]).encode() + b"\n")
    return problem


def _parse(line: str) -> tuple[str, dict[str, Any]]:
    """A task's name and settings. Raises ValueError for anything else."""
    match json.loads(line):
        case [str(name), dict(settings)]:
            return name, settings
    raise ValueError("not a task's announcement")


def _report(
    me: str, settings: Mapping[str, Any], first: str, leader: tuple[str, int], timeout: float
) -> tuple[UserError | None, Address]:
    """Announce this task to the first one. Returns why they cannot begin, or None, and the StopServer's address."""
    end = time.monotonic() + timeout
    while (left := end - time.monotonic()) > 0:
        try:
            with socket.create_connection(leader, left) as connection:
                connection.sendall(json.dumps([me, settings]).encode() + b"\n")
                connection.settimeout(left + 2)  # the first one started to wait at another time
                if answer := connection.makefile().readline():
                    message, (stop_host, port, token) = json.loads(answer)
                    return decode_error(message), (stop_host, port, token)
        except OSError:
            pass
        time.sleep(POLL_SECONDS)
    host, port = leader
    raise PeerTimeout(f"cluster.timeout={timeout:g}: {first} ({host}:{port}) did not arrive in time")
