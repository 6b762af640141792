"""Connects the commands of a run's hosts: where one of them ends, for whatever cause, the others learn it.

Every command holds a connection to the first host's. A last byte is the exit code that a command ends with; without it,
as after SIGKILL, it was lost.
"""

import socket
import time
from threading import Thread

from common.cluster.topology import Nodes

# Where a host becomes silent: seconds until the first probe and between two, and how many go unanswered.
PROBES = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}

WAIT_SECONDS = 30.0  # for the first host's command, once this one's processes have ended


def keep_alive(connection: socket.socket) -> None:
    """Have a connection break where the host at its other end becomes silent."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in PROBES.items():
        if hasattr(socket, option):  # they are Linux's
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class PeerMonitor:
    """This host's connections to the others' commands; a run on one host has none.

    lost: the error, once another command was lost or failed. ended: the exit code of the first host's command, or of
    one that was interrupted.
    """

    def __init__(self, nodes: Nodes, processes: int) -> None:
        self.lost: str | None = None
        self.ended: int | None = None
        self._held: list[socket.socket] = []
        self._thread: Thread | None = None
        if nodes.several:
            leader = (nodes.hosts[0], nodes.monitor_port(processes))
            self._thread = Thread(target=self._join if nodes.node else self._serve, args=(leader,), daemon=True)
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
            received = connection.recv(1)
        except OSError:
            received = b""
        if not received or 0 < received[0] <= 128:
            self.lost = f"the command on host {host} ended or cannot be reached"
        else:
            self.ended = received[0]

    @property
    def signum(self) -> int | None:
        """The signal that stopped another command."""
        return None if self.ended is None or self.ended <= 128 else self.ended - 128

    def wait(self) -> None:
        """On a host after the first: until the first one's command has ended."""
        assert self._thread is not None
        self._thread.join(WAIT_SECONDS)

    def close(self, exit_code: int) -> None:
        """At the end of this host's command."""
        for connection in self._held:
            try:
                connection.sendall(bytes([exit_code]))
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # the other end has closed it before
                continue
