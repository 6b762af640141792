"""Ties the commands of a run's hosts together: where one of them ends, by whatever cause, the others learn it.

Every command holds a connection to the first host's. A last byte says that the command ended well; without it, as after
SIGKILL, it did not.
"""

import socket
import time
from threading import Thread

from common.cluster import topology as cluster
from common.config.schema import Config

ENDED_WELL = b"."
# Where a host falls silent: seconds until the first probe and between two, and how many go unanswered.
PROBES = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}

WAIT_SECONDS = 30.0  # for the first host's command, once this one's processes have ended well


def lifeline_port(config: Config) -> int:
    """Where the first host's command listens: behind the ports of its processes."""
    assert config.cluster.port is not None
    return config.cluster.port + sum(cluster.roles(config).values())


def keep_alive(connection: socket.socket) -> None:
    """Have a connection break where the host at its other end falls silent."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in PROBES.items():
        if hasattr(socket, option):  # they are Linux's
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class Lifeline:
    """What this host's command holds on to; a run on one host has nothing to hold."""

    def __init__(self, config: Config) -> None:
        self.lost: str | None = None  # which other command has ended, and not well
        self._held: list[socket.socket] = []
        self._thread: Thread | None = None
        if config.cluster.name == "hosts":
            assert config.cluster.hosts is not None
            leader = (config.cluster.hosts[0], lifeline_port(config))
            self._thread = Thread(
                target=self._join if config.cluster.node else self._serve, args=(leader,), daemon=True
            )
            self._thread.start()

    def _serve(self, leader: tuple[str, int]) -> None:
        server = socket.create_server(("", leader[1]))
        while True:
            connection, address = server.accept()
            Thread(target=self._hold, args=(connection, address[0]), daemon=True).start()

    def _join(self, leader: tuple[str, int]) -> None:
        while True:
            try:
                connection = socket.create_connection(leader, 5)
            except OSError:
                time.sleep(0.2)
                continue
            connection.settimeout(None)
            return self._hold(connection, leader[0])

    def _hold(self, connection: socket.socket, host: str) -> None:
        keep_alive(connection)
        self._held.append(connection)
        try:
            said = connection.recv(1)
        except OSError:
            said = b""
        if said != ENDED_WELL:
            self.lost = f"the command on host {host} ended or cannot be reached"

    def wait(self) -> None:
        """On a host after the first: until the first one's command has ended, which `lost` tells of if not well."""
        assert self._thread is not None
        self._thread.join(WAIT_SECONDS)

    def release(self, well: bool) -> None:
        """Let go at the end of this host's command."""
        for connection in self._held:
            try:
                connection.sendall(ENDED_WELL if well else b"")
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # the other end has gone before
                continue
