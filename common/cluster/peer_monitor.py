"""Connects the commands of a run's hosts: they begin every attempt together, and where one ends, the others learn it.

For each attempt every other command connects to the first host's and sends {"join": node}. The first one answers with
{"offer": the checkpoint that the attempt starts from}. Who lacks that fetches it over another connection, on which it
sends {"fetch": fingerprint}. Each then sends {"ready": node}; once all have, the first one sends {"start": attempt}. At
the end of an attempt each sends {"ended": exit code}, the first one {"again": attempt} where it will start another. A
connection that breaks without that, as after SIGKILL, means that the command at its other end was lost.
"""

import logging
import math
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from threading import Condition, Thread
from typing import Any, BinaryIO

from common.cluster.checkpoint_transfer import BrokenTransfer, CheckpointTransfer
from common.cluster.json_line_socket import JsonLineSocket
from common.cluster.topology import HostGroup
from common.errors import FAILURE, USER_ERROR, PeerTimeout

log = logging.getLogger("lockstep")

# Where a host becomes silent: seconds until the first probe and between two, and how many go unanswered.
PROBES = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}

WAIT_SECONDS = 30.0  # for the first host's command, once this one's processes have ended
RETRY_SECONDS = 0.2

Message = Mapping[str, Any]


def enable_keep_alive(connection: socket.socket) -> None:
    """Have a connection break where the host at its other end becomes silent."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in PROBES.items():
        if hasattr(socket, option):  # they are Linux's
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class PeerMonitor:
    """This host's connections to the others' commands; a run on one host has none.

    lost: the error, once another command was lost or its attempt failed. final: there will be no other attempt.
    ended: the exit code of the first host's command, or of one that was interrupted.
    """

    def __init__(self, nodes: HostGroup, processes: int, transfer: CheckpointTransfer) -> None:
        self.lost: str | None = None
        self.final = False
        self.ended: int | None = None
        self._nodes, self._transfer = nodes, transfer
        self._changed = Condition()
        self._joined: dict[int, JsonLineSocket] = {}  # on the first host: who waits for the next attempt, by node
        self._ready: set[int] = set()  # those of them that have the checkpoint
        self._offer: Message | None = None  # while they are waited for
        self._sent = -math.inf  # when a part of the checkpoint was sent
        self._held: dict[int, JsonLineSocket] = {}  # of the attempt that has begun
        self._thread: Thread | None = None
        if nodes.is_multi_host:
            self._leader = (nodes.hosts[0], nodes.monitor_port(processes))
            if not nodes.host_index:
                server = socket.create_server(("", self._leader[1]))
                Thread(target=self._serve, args=(server,), daemon=True).start()

    def begin(self, attempt: int, timeout: float) -> int:
        """Wait until the commands of all hosts are here. Returns the number of the attempt, which the first one gives.

        All then start from the first host's checkpoint. Where the first one has ended meanwhile, or another was
        interrupted, `lost` or `ended` is set. Raises PeerTimeout naming the hosts whose commands do not arrive within
        `timeout` seconds, and UserError where the checkpoint cannot be written.
        """
        if not self._nodes.is_multi_host:
            return attempt
        return self._join(attempt, timeout) if self._nodes.host_index else self._gather(attempt, timeout)

    def _gather(self, attempt: int, timeout: float) -> int:
        """On the first host."""
        others = set(range(1, len(self._nodes.hosts)))
        with self._changed:
            self._offer = {"offer": self._transfer.offer()}
            for lines in self._joined.values():
                _send(lines, self._offer)
            while not self._changed.wait_for(lambda: self.ended or self.lost or others <= self._ready, timeout):
                if time.monotonic() - self._sent > timeout:
                    raise self._absent(others - self._ready, timeout)
            self._offer = None
            if not self.ended and not self.lost:
                self._held, self._joined, self._ready = self._joined, {}, set()
                self._tell({"start": attempt})
        return attempt

    def _join(self, attempt: int, timeout: float) -> int:
        """On the others. The first one may be restarted itself while they wait."""
        deadline, problem = time.monotonic() + timeout, ""
        while time.monotonic() < deadline:
            try:
                lines = self._connect(None)
            except OSError:
                time.sleep(RETRY_SECONDS)
                continue
            self._held = {0: lines}
            self._tell({"join": self._nodes.host_index})
            messages = _messages(lines)
            for message in messages:
                match message:
                    case {"offer": offer}:
                        try:
                            self._transfer.follow(offer, lambda fingerprint: self._fetch(fingerprint, timeout))
                        except BrokenTransfer as broken:
                            problem = f"the checkpoint cannot be received from host {self._nodes.hosts[0]} ({broken})"
                            log.warning("%s; trying again", problem)
                            time.sleep(RETRY_SECONDS)
                            with suppress(OSError):
                                lines.connection.shutdown(socket.SHUT_WR)  # it may have said why
                        else:
                            self._tell({"ready": self._nodes.host_index})
                    case {"start": int(number)}:
                        self._thread = Thread(target=self._listen, args=(lines, messages), daemon=True)
                        self._thread.start()
                        return number
                    case _:
                        self._hear(0, lines, message)
                        return attempt
            time.sleep(RETRY_SECONDS)  # the first one has closed the connection
        raise PeerTimeout(f"cluster.timeout={timeout:g}: {problem}") if problem else self._absent({0}, timeout)

    def _connect(self, timeout: float | None) -> JsonLineSocket:
        """To the first host's command. timeout: of later reads."""
        connection = socket.create_connection(self._leader, 5)
        connection.settimeout(timeout)
        enable_keep_alive(connection)
        return JsonLineSocket(connection)

    def _fetch(self, fingerprint: str, timeout: float) -> BinaryIO:
        lines = self._connect(timeout)
        with lines.connection:  # its file keeps it open
            lines.send({"fetch": fingerprint})
            return lines.connection.makefile("rb")

    def _listen(self, lines: JsonLineSocket, messages: Iterator[Message]) -> None:
        message = next(messages, {})
        with self._changed:
            self._hear(0, lines, message)

    def _absent(self, nodes: set[int], timeout: float) -> PeerTimeout:
        hosts = ", ".join(self._nodes.hosts[node] for node in sorted(nodes))
        what = "receive and verify the checkpoint" if nodes <= self._joined.keys() else "arrive"
        return PeerTimeout(f"cluster.timeout={timeout:g}: the command on host {hosts} did not {what} in time")

    def _serve(self, server: socket.socket) -> None:
        while True:
            connection, _ = server.accept()
            Thread(target=self._attend, args=(connection,), daemon=True).start()

    def _attend(self, connection: socket.socket) -> None:
        """On the first host: to one connection of another command, for one attempt or to fetch the checkpoint."""
        enable_keep_alive(connection)
        lines = JsonLineSocket(connection)
        messages = _messages(lines)
        match next(messages, {}):
            case {"join": int(node)} if 0 < node < len(self._nodes.hosts):
                self._attend_node(node, lines, messages)
            case {"fetch": str(fingerprint)}:
                self._send_checkpoint(connection, fingerprint)
            case _:
                connection.close()

    def _attend_node(self, node: int, lines: JsonLineSocket, messages: Iterator[Message]) -> None:
        with self._changed:
            if node in self._held:  # it was restarted before its end was noticed
                self._hear(node, self._held[node], {})
            self._joined[node] = lines
            self._ready.discard(node)
            if self._offer is not None:
                _send(lines, self._offer)
        message = next(messages, {})
        if "ready" in message:
            with self._changed:
                if self._joined.get(node) is lines:
                    self._ready.add(node)
                    self._changed.notify_all()
            message = next(messages, {})
        with self._changed:
            if self._joined.get(node) is lines:
                del self._joined[node]
                self._ready.discard(node)
                match message:
                    case {"ended": int(code)} if code > 128:
                        self.ended = code
                    case {"ended": code} if code == USER_ERROR:
                        self._lose(node)
                        self.final = True
                lines.connection.close()
                self._changed.notify_all()
            self._hear(node, lines, message)

    def _send_checkpoint(self, connection: socket.socket, fingerprint: str) -> None:
        """Of this attempt, before it has begun; nothing else is ever sent."""
        offered = (self._offer or {}).get("offer")
        with connection:
            if offered is None or offered["fingerprint"] != fingerprint:
                return
            try:
                for piece in self._transfer.pieces():
                    connection.sendall(piece)
                    self._sent = time.monotonic()
            except OSError as error:
                log.warning("the checkpoint could not be sent to another host (%s)", error)

    def _hear(self, node: int, lines: JsonLineSocket, message: Message) -> None:
        """How another command has ended the attempt; without a message it was lost."""
        if self._held.get(node) is not lines:
            return  # of an earlier attempt
        self.final = "ended" in message and (node == 0 or message["ended"] == USER_ERROR)
        match message:
            case {"ended": int(code)} if not 0 < code <= 128:
                self.ended = code
            case _:
                self._lose(node)

    def _lose(self, node: int) -> None:
        self.lost = f"the command on host {self._nodes.hosts[node]} ended or cannot be reached"

    @property
    def signum(self) -> int | None:
        """The signal that stopped another command."""
        return None if self.ended is None or self.ended <= 128 else self.ended - 128

    def wait(self) -> None:
        """On a host after the first: until the first one's command has ended the attempt."""
        assert self._thread is not None
        self._thread.join(WAIT_SECONDS)

    def again(self, attempt: int) -> None:
        """At the end of an attempt that failed and is not the last."""
        with self._changed:
            held, self._held = self._held, {}
            self.lost, self.final, self.ended = None, False, None
        _part(held, {"ended": FAILURE} if self._nodes.host_index else {"again": attempt})

    def close(self, exit_code: int) -> None:
        """At the end of this host's command."""
        with self._changed:
            held, self._held = self._held | self._joined, {}
        _part(held, {"ended": exit_code})

    def _tell(self, message: Message) -> None:
        for lines in self._held.values():
            _send(lines, message)


def _part(held: Mapping[int, JsonLineSocket], message: Message) -> None:
    for lines in held.values():
        _send(lines, message)
        with suppress(OSError):  # the other end has closed it before
            lines.connection.shutdown(socket.SHUT_RDWR)


def _send(lines: JsonLineSocket, message: Message) -> None:
    with suppress(OSError):  # that the connection was lost is found where it is read
        lines.send(message)


def _messages(lines: JsonLineSocket) -> Iterator[Message]:
    """Those of a connection until it breaks, or something else is sent."""
    with suppress(OSError):
        while True:
            yield from lines.receive()
