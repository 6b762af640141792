"""Rendezvous: wait for the other processes of a run, and check that all have the same settings.

A task is a process of the cluster that TF_CONFIG describes, with a role and an index. TensorFlow waits forever, or for
an hour, for a task that never starts, and does not name it. So the tasks meet before they start TensorFlow's servers:
each task announces itself at the address of the first task, which is the chief of the run.
"""

import os
import socket
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from socket import AF_INET, AF_INET6
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
from common.cluster.network import find_own_address
from common.cluster.processes import IS_REPLACEMENT, RUN_TOKEN, STOP_PORT, read_run_token
from common.cluster.stop_member import StopMember
from common.cluster.stop_server import StopServer
from common.cluster.token_listener import TokenListener
from common.errors import PeerTimeout, UserError
from common.run.context import RunContext

POLL_SECONDS = 0.1
ANSWER_SECONDS = 1.0  # how long the first task tries to send its answer to a task
MAX_MESSAGE_BYTES = 1 << 20  # length limit of an announcement, which has the settings of a run

Settings = Mapping[str, object]  # settings by key, with values that JSON can represent
StopAddress = tuple[str, int, str]  # host, port and token of the StopServer of the first task


class TaskAnnouncement(TypedDict):
    """First message of a task: the token of the run, its name, and the settings that must be the same in all tasks."""

    hello: str
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
    # Describes the cluster to TensorFlow's strategies; None if this task is alone.
    resolver: tf.distribute.cluster_resolver.TFConfigClusterResolver | None
    # Lets the tasks agree on when to stop; None if this task is alone or was started again.
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
    all_hosts = [address.rpartition(":")[0].strip("[]") for role in roles for address in cluster[role]]
    channel = StopServer(find_own_address(all_hosts, 0), int(os.environ.get(STOP_PORT, 0)))
    # On one machine, all tasks connect over its loopback interface. Tasks on other hosts may know several addresses of
    # this host, so it listens on all of them.
    bound_host = host if ip_address(channel.address[0]).is_loopback else ""
    try:
        with closing(_listen(bound_host, int(port))) as listener:
            problem = _wait_for_others(listener, tasks[1:], (task, settings), timeout, channel.address)
        if problem is not None:
            raise problem
    except UserError:
        channel.close()
        raise
    channel.wait_for_members(len(tasks) - 1, timeout)
    return Group(rank, len(tasks), resolver, channel)


def _listen(host: str, port: int) -> TokenListener:
    """Listen for the other tasks. Raise UserError if another program listens on the port."""
    try:  # the command of a local run keeps the port reserved, hence reuse_port
        server = socket.create_server((host, port), family=AF_INET6 if ":" in host else AF_INET, reuse_port=True)
    except OSError as error:
        reason = os.strerror(error.errno or 0)  # create_server adds the address to the error's own text
        raise UserError(f"port {port} is in use on this host ({reason}); choose another port") from error
    return TokenListener(server, read_run_token(), MAX_MESSAGE_BYTES)


def _wait_for_others(
    listener: TokenListener,
    others: list[str],
    announcement: tuple[str, Settings],
    timeout: float,
    stop_address: StopAddress,
) -> UserError | None:
    """Wait in the first task for the others. Return the reason why the run cannot begin, or None.

    All tasks that have arrived get the same answer: this reason, and the address of the StopServer.

    Args:
        listener: the socket to which the others connect.
        others: names of the other tasks.
        announcement: name and settings of this task.
        timeout: seconds to wait.
        stop_address: address of the StopServer.
    """
    end = time.monotonic() + timeout
    missing = list(others)
    problem: UserError | None = None
    arrived = []  # connections to the tasks that have announced themselves
    while missing and problem is None:
        _, clients = listener.wait([], max(0.0, end - time.monotonic()))
        if not clients:
            absent = f"{', '.join(missing)} of {len(others) + 1} tasks"
            problem = PeerTimeout(f"cluster.timeout={timeout:g}: {absent} did not arrive in time")
        for message, task_socket in clients:
            match message:
                case {"name": str(name), "settings": dict(settings)} if name in others:
                    arrived.append(task_socket)
                    missing = [other for other in missing if other != name]
                    if difference := describe_disagreement(name, settings, *announcement):
                        problem = UserError(difference)
                case _:  # not a task of this run
                    task_socket.connection.close()
    for task_socket in arrived:
        with suppress(OSError), task_socket.connection as connection:  # the task may have ended
            connection.settimeout(ANSWER_SECONDS)
            task_socket.send(RendezvousAnswer(problem=encode_error(problem), stop=stop_address))
    return problem


def _announce(
    task: str, settings: Settings, first_task: str, first_address: tuple[str, int], timeout: float
) -> tuple[UserError | None, StopAddress]:
    """Announce this task to the first task. Return the answer: why the run cannot begin (or None), and the StopAddress.

    Raises:
        PeerTimeout: the first task did not answer in time.
    """
    end = time.monotonic() + timeout
    announcement = TaskAnnouncement(hello=os.environ.get(RUN_TOKEN, ""), name=task, settings=settings)
    while (remaining := end - time.monotonic()) > 0:
        try:
            with socket.create_connection(first_address, remaining) as connection:
                json_socket = JsonLineSocket(connection, MAX_MESSAGE_BYTES)
                json_socket.send(announcement)
                # The first task may have started its timeout later than this task.
                answer = cast(RendezvousAnswer, json_socket.receive_one(remaining + 2))
                stop_host, port, token = answer["stop"]
                return decode_error(answer["problem"]), (stop_host, port, token)
        except OSError:
            pass
        time.sleep(POLL_SECONDS)
    host, port = first_address
    raise PeerTimeout(f"cluster.timeout={timeout:g}: {first_task} ({host}:{port}) did not arrive in time")
