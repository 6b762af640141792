"""Meet the other processes of a run.

TensorFlow waits for a task that never comes for ever, or for an hour, and does not say which it is. So the tasks meet
before they start their servers: each one says at the first one's address that it is there.
"""

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any

import tensorflow as tf

from common.cluster.agreement import disagreement
from common.cluster.processes import RETURNED
from common.errors import UserError

POLL_SECONDS = 0.1


def join_group(timeout: float, settings: Mapping[str, Any]) -> tf.distribute.cluster_resolver.TFConfigClusterResolver:
    """Wait for all tasks of the cluster that TF_CONFIG describes. Returns what TensorFlow's strategies take.

    Raises UserError naming the tasks that have not come after `timeout` seconds, or the settings that a task has
    otherwise than the first one.
    """
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if RETURNED in os.environ:  # the others have met
        return resolver
    cluster = resolver.cluster_spec().as_dict()
    first = "chief" if "chief" in cluster else "worker"
    tasks = [f"{role} {index}" for role in sorted(cluster) for index in range(len(cluster[role]))]
    host, _, port = cluster[first][0].rpartition(":")
    me = f"{resolver.task_type} {resolver.task_id}"
    if me == f"{first} 0":
        problem = _receive([task for task in tasks if task != me], me, settings, int(port), timeout)
    else:
        problem = _report(me, settings, f"{first} 0", (host.strip("[]"), int(port)), timeout)
    if problem is not None:
        raise UserError(problem)
    return resolver


def _receive(others: list[str], me: str, settings: Mapping[str, Any], port: int, timeout: float) -> str | None:
    """Wait for the other tasks. Returns why they cannot begin, or None; those that came are told the same."""
    end = time.monotonic() + timeout
    missing, problem = list(others), None
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
        came = []
        while missing and problem is None:
            server.settimeout(max(0.001, end - time.monotonic()))
            try:
                connection = stack.enter_context(server.accept()[0])
                connection.settimeout(1)
                name, theirs = json.loads(connection.makefile().readline())
            except TimeoutError:
                if time.monotonic() > end:
                    problem = f"cluster.timeout={timeout:g}: {', '.join(missing)} of {len(others) + 1} tasks "
                    problem += "did not come in time"
                continue
            except (OSError, ValueError):  # something that is no task of ours
                continue
            problem = disagreement(name, theirs, me, settings)
            came.append(connection)
            if name in missing:
                missing.remove(name)
        for connection in came:
            with suppress(OSError):  # it may have gone
                connection.sendall(json.dumps(problem).encode() + b"\n")
    return problem


def _report(me: str, settings: Mapping[str, Any], first: str, leader: tuple[str, int], timeout: float) -> str | None:
    """Tell the first task that this one is there. Returns why they cannot begin, or None."""
    end = time.monotonic() + timeout
    while (left := end - time.monotonic()) > 0:
        try:
            with socket.create_connection(leader, left) as connection:
                connection.sendall(json.dumps([me, settings]).encode() + b"\n")
                connection.settimeout(left + 2)  # the first one started to wait at another time
                if answer := connection.makefile().readline():
                    problem: str | None = json.loads(answer)
                    return problem
        except OSError:
            pass
        time.sleep(POLL_SECONDS)
    host, port = leader
    return f"cluster.timeout={timeout:g}: {first} ({host}:{port}) did not come in time"
