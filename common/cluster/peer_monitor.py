"""Connections between the hosts of a run. They synchronize the start and the end of every attempt.

On each host one command starts the training processes. An attempt is one start of all processes. The commands of the
other hosts connect to the first host's command, as common.cluster.peer_messages describes.
"""

import logging
import math
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from threading import BoundedSemaphore, Condition, Thread
from typing import BinaryIO

from common.cluster.checkpoint_transfer import BrokenTransferError, CheckpointTransfer
from common.cluster.json_line_socket import JsonLineSocket, JsonObject
from common.cluster.network import enable_keep_alive
from common.cluster.peer_messages import (
    AttemptEnded,
    FetchCheckpoint,
    HostReady,
    JoinAttempt,
    NextAttempt,
    OfferCheckpoint,
    PeerMessage,
    StartAttempt,
)
from common.cluster.token_listener import HELLO_SECONDS, MAX_UNAUTHENTICATED
from common.cluster.topology import HostGroup
from common.errors import FAILURE, USER_ERROR, PeerTimeout

log = logging.getLogger("lockstep")

WAIT_SECONDS = 30.0  # how long other hosts wait for the first host to end the attempt after their processes ended
RETRY_SECONDS = 0.2  # time between two attempts to connect to the first host's command


class PeerMonitor:
    """This host's connections to the commands of the other hosts. A run on one host has no connections.

    A lost command is one whose connection broke without a last message.

    Args:
        hosts: the hosts of the run, with the index of this host. Host 0 is the first host.
        processes: the number of the run's processes on all hosts, which the port of the first host depends on.
        transfer: brings the checkpoint that an attempt starts from to all hosts.

    Attributes:
        error: the error to report after another command was lost or its attempt has failed.
        is_final: whether no other attempt will follow.
        exit_code: the exit code of the first host's command, or of a command that was interrupted; None until then.
        token: the secret of the run's processes, chosen by the first host's command.
    """

    def __init__(self, hosts: HostGroup, processes: int, transfer: CheckpointTransfer) -> None:
        self.error: str | None = None
        self.is_final = False
        self.exit_code: int | None = None
        self.token = secrets.token_hex()
        self._hosts, self._transfer = hosts, transfer
        self._changed = Condition()  # locked while the state changes; the keys of both dictionaries are host indices
        self._joined: dict[int, JsonLineSocket] = {}  # the first host's connections to hosts that wait for an attempt
        self._ready: set[int] = set()  # the indices of the joined hosts that have the checkpoint
        self._offer: OfferCheckpoint | None = None  # the first host's offer for the next attempt, while hosts join it
        self._last_sent_at = -math.inf  # when the first host last sent a chunk of the checkpoint
        self._connected: dict[int, JsonLineSocket] = {}  # connections to the other hosts of this attempt
        self._leader_listener: Thread | None = None
        if hosts.is_multi_host:
            self._leader_address = (hosts.hosts[0], hosts.monitor_port(processes))
            if not hosts.host_index:
                # A thread serves each connection. Connections without a request, and fetches, are limited in number.
                self._unauthenticated: list[JsonLineSocket] = []  # connections without a request, the oldest first
                self._free_fetches = BoundedSemaphore(2 * len(hosts.hosts))  # a restarted host fetches again
                server = socket.create_server(("", self._leader_address[1]))
                Thread(target=self._serve, args=(server,), daemon=True).start()

    def begin_attempt(self, attempt: int, timeout: float) -> int:
        """Wait until the commands of all hosts have arrived and have the first host's checkpoint.

        If the first host's command has ended meanwhile, or another was interrupted, `error` or `exit_code` is set.

        Args:
            attempt: the number that this host expects for the attempt, from 0.
            timeout: seconds to wait for the others, not counting the time in which a checkpoint is sent.

        Returns:
            The number of the attempt, which the first host determines.

        Raises:
            PeerTimeout: some commands did not arrive; the error names their hosts.
            UserError: the checkpoint cannot be written.
        """
        if not self._hosts.is_multi_host:
            return attempt
        return self._join_leader(attempt, timeout) if self._hosts.host_index else self._start_all(attempt, timeout)

    def _start_all(self, attempt: int, timeout: float) -> int:
        """Start an attempt on all hosts, as the first host."""
        others = set(range(1, len(self._hosts.hosts)))  # host indices
        with self._changed:
            self._offer = OfferCheckpoint(offer=self._transfer.make_offer())
            for peer in self._joined.values():
                _send(peer, self._offer)
            while not self._changed.wait_for(lambda: self.exit_code or self.error or others <= self._ready, timeout):
                if time.monotonic() - self._last_sent_at > timeout:  # otherwise a host still receives the checkpoint
                    raise self._build_timeout(others - self._ready, timeout)
            self._offer = None
            if not self.exit_code and not self.error:
                self._connected, self._joined, self._ready = self._joined, {}, set()
                self._broadcast(StartAttempt(start=attempt, token=self.token))
        return attempt

    def _join_leader(self, attempt: int, timeout: float) -> int:
        """Join an attempt as a host other than the first. The first host's command may be restarted meanwhile."""
        deadline, problem = time.monotonic() + timeout, ""
        while time.monotonic() < deadline:
            try:
                leader = self._connect(None)
            except OSError:  # the first host's command does not listen yet
                time.sleep(RETRY_SECONDS)
                continue
            self._connected = {0: leader}
            self._broadcast(JoinAttempt(join=self._hosts.host_index))  # only the leader is connected
            messages = leader.iterate()
            for message in messages:
                match message:
                    case {"offer": offer}:
                        try:
                            self._transfer.accept_offer(offer, lambda fingerprint: self._fetch(fingerprint, timeout))
                        except BrokenTransferError as error:
                            problem = f"the checkpoint cannot be received from host {self._hosts.hosts[0]} ({error})"
                            log.warning("%s; trying again", problem)
                            time.sleep(RETRY_SECONDS)
                            with suppress(OSError):
                                leader.connection.shutdown(socket.SHUT_WR)  # a last message may still arrive
                        else:
                            self._broadcast(HostReady(ready=self._hosts.host_index))
                    case {"start": int(number), "token": str(token)}:
                        self.token = token
                        self._leader_listener = Thread(target=self._listen, args=(leader, messages), daemon=True)
                        self._leader_listener.start()
                        return number
                    case _:  # AttemptEnded or NextAttempt: the attempt has ended before it began
                        self._on_attempt_end(0, leader, message)
                        return attempt
            time.sleep(RETRY_SECONDS)  # the first host has closed the connection
        raise PeerTimeout(f"cluster.timeout={timeout:g}: {problem}") if problem else self._build_timeout({0}, timeout)

    def _connect(self, timeout: float | None) -> JsonLineSocket:
        """Connect to the first host's command. timeout: seconds that each later read may take; None for no limit."""
        connection = socket.create_connection(self._leader_address, 5)
        connection.settimeout(timeout)
        enable_keep_alive(connection)
        return JsonLineSocket(connection)

    def _fetch(self, fingerprint: str, timeout: float) -> BinaryIO:
        leader = self._connect(timeout)
        with leader.connection:  # the returned file keeps it open
            leader.send(FetchCheckpoint(fetch=fingerprint))
            return leader.connection.makefile("rb")

    def _listen(self, leader: JsonLineSocket, messages: Iterator[JsonObject]) -> None:
        """Wait, in a thread of another host, for the message of the first host's command that ends the attempt."""
        message = next(messages, {})
        with self._changed:
            self._on_attempt_end(0, leader, message)

    def _build_timeout(self, host_indices: set[int], timeout: float) -> PeerTimeout:
        names = ", ".join(self._hosts.hosts[host_index] for host_index in sorted(host_indices))
        action = "receive and verify the checkpoint" if host_indices <= self._joined.keys() else "arrive"
        return PeerTimeout(f"cluster.timeout={timeout:g}: the command on host {names} did not {action} in time")

    def _serve(self, server: socket.socket) -> None:
        while True:
            peer = JsonLineSocket(server.accept()[0])
            with self._changed:
                self._unauthenticated.append(peer)
                if len(self._unauthenticated) > MAX_UNAUTHENTICATED:
                    self._unauthenticated.pop(0).shut_down()
            Thread(target=self._serve_connection, args=(peer,), daemon=True).start()

    def _serve_connection(self, peer: JsonLineSocket) -> None:
        """Serve a connection on the first host. It belongs to one attempt of a host, or fetches the checkpoint."""
        request: JsonObject = {}
        with suppress(OSError):  # the request is not a message, or not complete in time
            enable_keep_alive(peer.connection)
            request = peer.receive_one(HELLO_SECONDS)
            peer.connection.settimeout(None)
        with self._changed, suppress(ValueError):  # another connection has closed this one
            self._unauthenticated.remove(peer)
        match request:
            case {"join": int(host_index)} if 0 < host_index < len(self._hosts.hosts):
                self._serve_host(host_index, peer, peer.iterate())
            case {"fetch": str(fingerprint)} if self._free_fetches.acquire(blocking=False):
                self._send_checkpoint(peer.connection, fingerprint)
                self._free_fetches.release()
            case _:
                peer.connection.close()

    def _serve_host(self, host_index: int, peer: JsonLineSocket, messages: Iterator[JsonObject]) -> None:
        """Serve the connection of another host's command for one attempt: from JoinAttempt to AttemptEnded."""
        with self._changed:
            if host_index in self._connected:  # the host's command was restarted before this thread noticed its end
                self._on_attempt_end(host_index, self._connected[host_index], {})
            if host_index in self._joined:
                self._joined[host_index].shut_down()  # ends the thread of the earlier connection
            self._joined[host_index] = peer
            self._ready.discard(host_index)
            if self._offer is not None:
                _send(peer, self._offer)
        message = next(messages, {})
        if "ready" in message:
            with self._changed:
                if self._joined.get(host_index) is peer:
                    self._ready.add(host_index)
                    self._changed.notify_all()
            message = next(messages, {})
        with self._changed:
            if self._joined.get(host_index) is peer:  # the host's command ended before the attempt began
                del self._joined[host_index]
                self._ready.discard(host_index)
                match message:
                    case {"ended": int(exit_code)} if exit_code > 128:  # 128 + the signal that has stopped it
                        self.exit_code = exit_code
                    case {"ended": exit_code} if exit_code == USER_ERROR:
                        self._record_loss(host_index)
                        self.is_final = True
                peer.connection.close()
                self._changed.notify_all()
            self._on_attempt_end(host_index, peer, message)

    def _send_checkpoint(self, connection: socket.socket, fingerprint: str) -> None:
        """Send the checkpoint that is offered now, and nothing else: no client can ask for any other file."""
        offer = self._offer
        checkpoint = None if offer is None else offer["offer"]
        with connection:
            if checkpoint is None or checkpoint["fingerprint"] != fingerprint:
                return
            try:
                for chunk in self._transfer.read_chunks():
                    connection.sendall(chunk)
                    self._last_sent_at = time.monotonic()
            except OSError as error:
                log.warning("the checkpoint could not be sent to another host (%s)", error)

    def _on_attempt_end(self, host_index: int, peer: JsonLineSocket, message: JsonObject) -> None:
        """Record how another command has ended the attempt. An empty message means that the command was lost."""
        if self._connected.get(host_index) is not peer:
            return  # the connection belongs to an earlier attempt
        # Before another attempt the first host sends NextAttempt, which has no "ended".
        self.is_final = "ended" in message and (host_index == 0 or message["ended"] == USER_ERROR)
        match message:
            case {"ended": int(exit_code)} if not 0 < exit_code <= 128:  # it succeeded or was stopped by a signal
                self.exit_code = exit_code
            case _:
                self._record_loss(host_index)

    def _record_loss(self, host_index: int) -> None:
        self.error = f"the command on host {self._hosts.hosts[host_index]} ended or cannot be reached"

    @property
    def stop_signal(self) -> int | None:
        """The signal that has stopped another command."""
        return None if self.exit_code is None or self.exit_code <= 128 else self.exit_code - 128

    def wait_for_leader(self) -> None:
        """Wait until the first host's command has ended the attempt. Only the other hosts call it."""
        assert self._leader_listener is not None
        self._leader_listener.join(WAIT_SECONDS)

    def announce_next_attempt(self, attempt: int) -> None:
        """Tell the other hosts that the attempt has failed and that another attempt follows."""
        with self._changed:
            connected, self._connected = self._connected, {}
            self.error, self.is_final, self.exit_code = None, False, None
        _close(connected, AttemptEnded(ended=FAILURE) if self._hosts.host_index else NextAttempt(again=attempt))

    def close(self, exit_code: int) -> None:
        """Tell the others that this host's command ends."""
        with self._changed:
            connected, self._connected = self._connected | self._joined, {}
        _close(connected, AttemptEnded(ended=exit_code))

    def _broadcast(self, message: PeerMessage) -> None:
        for peer in self._connected.values():
            _send(peer, message)


def _close(connected: Mapping[int, JsonLineSocket], message: PeerMessage) -> None:
    """Send a last message to every peer and close the connections."""
    for peer in connected.values():
        _send(peer, message)
        peer.shut_down()


def _send(peer: JsonLineSocket, message: PeerMessage) -> None:
    with suppress(OSError):  # the thread that reads from the connection notices that it is lost
        peer.send(message)
