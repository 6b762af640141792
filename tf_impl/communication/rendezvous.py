"""Rendezvous: wait for the other processes of a run, and check that all have the same settings.

A task is a process of the cluster that TF_CONFIG describes; it has a role and an index. TensorFlow waits forever, or
for an hour, for a task that never starts, and does not name it. So the tasks meet before they start TensorFlow's
servers: each task announces itself at the address of the first task, which is the chief of the run.
"""

import os
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TypedDict, cast

import tensorflow as tf

from common.cluster.agreement import (
    ErrorMessage,
    collect_shared_settings,
    decode_error,
    describe_disagreement,
    encode_error,
)
from common.cluster.json_line_socket import JsonLineSocket
from common.cluster.network import find_address_towards
from common.cluster.processes import IS_REPLACEMENT, STOP_PORT
from common.cluster.stop_member import StopMember
from common.cluster.stop_server import StopServer
from common.errors import PeerTimeout, UserError
from common.run.context import RunContext

POLL_SECONDS = 0.1
MAX_MESSAGE_BYTES = 1 << 20  # length limit of an announcement, which has the settings of a run

Settings = Mapping[str, object]  # by key; the values are of JSON
StopAddress = tuple[str, int, str]  # host, port and token of the StopServer of the first task


class TaskAnnouncement(TypedDict):
    """First message of a task: its name, and the settings that must be the same in all tasks."""

    name: str
    settings: Settings


class RendezvousAnswer(TypedDict):
    """Answer of the first task: the error that prevents the run from beginning, and the address of its StopServer."""

    problem: ErrorMessage | None
    stop: StopAddress


@dataclass(frozen=True)
class Group:
    """The tasks of a run, as this task sees them."""

    rank: int  # index of this task among all tasks: chief, parameter servers, workers
    world_size: int  # number of tasks
    # describes the cluster to TensorFlow's strategies; None if this task is alone
    resolver: tf.distribute.cluster_resolver.TFConfigClusterResolver | None
    # over which the tasks agree on a stop; None if this task is alone or was started again
    channel: StopServer | StopMember | None


def join_group(context: RunContext) -> Group:
    """Wait for the other tasks of a run, if it has any. Raise PeerTimeout or UserError as `rendezvous` does."""
    if context.config.strategy.one_process:
        return Group(0, 1, None, None)
    return rendezvous(context.config.cluster.timeout, collect_shared_settings(context))


def rendezvous(timeout: float, settings: Settings) -> Group:
    """Wait for the other tasks of the cluster that TF_CONFIG describes.

    Args:
        timeout: seconds to wait.
        settings: the settings that must be the same in all tasks.

    Raises:
        PeerTimeout: some tasks did not arrive in time; the message names them.
        UserError: a task differs from the first one; the message names the settings.
    """
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster = resolver.cluster_spec().as_dict()
    roles = sorted(cluster)  # chief, ps, worker
    tasks = [f"{role} {index}" for role in roles for index in range(len(cluster[role]))]
    task = f"{resolver.task_type} {resolver.task_id}"
    first_role = "chief" if "chief" in cluster else "worker"
    rank = tasks.index(task)
    if IS_REPLACEMENT in os.environ:  # the other tasks do not wait for a task that is started again
        return Group(rank, len(tasks), resolver, None)
    host, _, port = cluster[first_role][0].rpartition(":")
    host = host.strip("[]")
    if rank:
        problem, stop_address = _announce(task, settings, f"{first_role} 0", (host, int(port)), timeout)
        if problem is not None:
            raise problem
        return Group(rank, len(tasks), resolver, StopMember(stop_address, task))
    channel = StopServer(find_address_towards(host), int(os.environ.get(STOP_PORT, 0)))
    announcement = task, settings
    problem = _wait_for_others(tasks[1:], announcement, int(port), timeout, channel.address)
    if problem is not None:
        channel.close()
        raise problem
    channel.wait_for_members(len(tasks) - 1, timeout)
    return Group(rank, len(tasks), resolver, channel)


def _wait_for_others(
    others: list[str], announcement: tuple[str, Settings], port: int, timeout: float, stop_address: StopAddress
) -> UserError | None:
    """Wait in the first task for the others. Return the reason why the run cannot begin, or None.

    All tasks that have arrived get the same answer: this reason, and the address of the StopServer.

    Args:
        others: names of the other tasks.
        announcement: name and settings of this task.
        port: port to listen on.
        timeout: seconds to wait.
        stop_address: address of the StopServer.
    """
    end = time.monotonic() + timeout
    missing = list(others)
    problem: UserError | None = None
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # the command of a local run keeps it reserved
        try:
            server.bind(("", port))
        except OSError as error:
            raise UserError(f"port {port} is in use on this host ({error.strerror}); choose another port") from error
        server.listen(len(others))
        arrived = []  # connections to the tasks that have announced themselves
        while missing and problem is None:
            server.settimeout(max(0.001, end - time.monotonic()))
            try:
                connection = stack.enter_context(server.accept()[0])
                connection.settimeout(1)
                task_socket = JsonLineSocket(connection, MAX_MESSAGE_BYTES)
                name, settings = _receive_announcement(task_socket)
            except TimeoutError:  # of the connection, or of the wait for all tasks
                if time.monotonic() > end:
                    absent = f"{', '.join(missing)} of {len(others) + 1} tasks"
                    problem = PeerTimeout(f"cluster.timeout={timeout:g}: {absent} did not arrive in time")
                continue
            except OSError:  # not a task of this run
                continue
            if difference := describe_disagreement(name, settings, *announcement):
                problem = UserError(difference)
            arrived.append(task_socket)
            if name in missing:
                missing.remove(name)
        for task_socket in arrived:
            with suppress(OSError):  # the task may have ended
                task_socket.send(RendezvousAnswer(problem=encode_error(problem), stop=stop_address))
    return problem


def _receive_announcement(task_socket: JsonLineSocket) -> tuple[str, Settings]:
    """Return the name and the settings of a task. Raise OSError if the other end sends anything else."""
    match task_socket.receive_one():
        case {"name": str(name), "settings": dict(settings)}:
            return name, settings
    raise ConnectionError("not the announcement of a task")


def _announce(
    task: str, settings: Settings, first_task: str, first_address: tuple[str, int], timeout: float
) -> tuple[UserError | None, StopAddress]:
    """Announce this task to the first one. Return its answer: why the run cannot begin, or None, and the StopAddress.

    Raises:
        PeerTimeout: the first task did not answer in time.
    """
    end = time.monotonic() + timeout
    while (remaining := end - time.monotonic()) > 0:
        try:
            with socket.create_connection(first_address, remaining) as connection:
                json_socket = JsonLineSocket(connection, MAX_MESSAGE_BYTES)
                json_socket.send(TaskAnnouncement(name=task, settings=settings))
                connection.settimeout(remaining + 2)  # the first task may have started its timeout later than this one
                answer = cast(RendezvousAnswer, json_socket.receive_one())
                stop_host, port, token = answer["stop"]
                return decode_error(answer["problem"]), (stop_host, port, token)
        except OSError:
            pass
        time.sleep(POLL_SECONDS)
    host, port = first_address
    raise PeerTimeout(f"cluster.timeout={timeout:g}: {first_task} ({host}:{port}) did not arrive in time")
