"""Meet the other processes of a run.

TensorFlow waits for a task that never comes for ever, or for an hour, and does not say which it is. So the tasks meet
before they start their servers: each one says at the first one's address that it is there.
"""

import json
import socket
import time
from contextlib import ExitStack

import tensorflow as tf

from common.errors import UserError

POLL_SECONDS = 0.1


def join_group(timeout: float) -> tf.distribute.cluster_resolver.TFConfigClusterResolver:
    """Wait for all tasks of the cluster that TF_CONFIG describes. Returns what TensorFlow's strategies take.

    Raises UserError naming the tasks that have not come after `timeout` seconds.
    """
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster = resolver.cluster_spec().as_dict()
    first = "chief" if "chief" in cluster else "worker"
    tasks = [f"{role} {index}" for role in sorted(cluster) for index in range(len(cluster[role]))]
    host, _, port = cluster[first][0].rpartition(":")
    me = f"{resolver.task_type} {resolver.task_id}"
    end = time.monotonic() + timeout
    missing = (
        _receive([task for task in tasks if task != me], int(port), end)
        if me == f"{first} 0"
        else _report(me, (host.strip("[]"), int(port)), end)
    )
    if missing is None:
        raise UserError(f"cluster.timeout={timeout:g}: {first} 0 ({host}:{port}) did not come in time")
    if missing:
        raise UserError(f"cluster.timeout={timeout:g}: {', '.join(missing)} of {len(tasks)} tasks did not come in time")
    return resolver


def _receive(others: list[str], port: int, end: float) -> list[str]:
    """Wait for the other tasks and tell those that came who is missing; returns it."""
    missing = list(others)
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
        while missing and (left := end - time.monotonic()) > 0:
            server.settimeout(left)
            try:
                connection = stack.enter_context(server.accept()[0])
                connection.settimeout(POLL_SECONDS)
                name = connection.recv(100).decode(errors="replace")
            except OSError:
                continue
            if name in missing:
                missing.remove(name)
                came.append(connection)
        for connection in came:
            connection.sendall(json.dumps(missing).encode() + b"\n")
    return missing


def _report(me: str, leader: tuple[str, int], end: float) -> list[str] | None:
    """Tell the first task that this one is there; returns who is missing, None where that is the first one itself."""
    while (left := end - time.monotonic()) > 0:
        try:
            with socket.create_connection(leader, left) as connection:
                connection.sendall(me.encode())
                connection.settimeout(left + 2)  # the first one started to wait at another time
                answer = connection.makefile().readline()
            if answer:
                missing: list[str] = json.loads(answer)
                return missing
        except OSError:
            pass
        time.sleep(POLL_SECONDS)
    return None
