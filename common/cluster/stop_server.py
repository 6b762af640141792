"""The chief's end of the connections over which the ranks of a run agree on the last unit before a stop.

A unit is one batch of training or evaluation, as common.training.stop counts them. A member is a rank other than the
chief, and has one TCP connection to the chief. On each rank a thread answers, even while the main thread is inside a
collective (an operation in which all ranks take part), so no answer waits for another rank.

A frozen rank begins no further unit until the decision. The last unit is the highest that any rank has begun. If one
rank is frozen before unit k and another rank has begun unit k, the frozen rank still runs unit k. Thus all ranks enter
every collective that any rank enters. The ranks agree in the same way on the unit after which all save a checkpoint.
For a checkpoint the chief waits for every answer without a time limit: a rank that never answers would block the next
step anyway.
"""

import logging
import secrets
import socket
import time
from contextlib import suppress
from threading import Lock, Semaphore, Thread

from common.cluster.json_line_socket import MAX_LINE_BYTES, JsonLineSocket, JsonObject
from common.cluster.stop_decision import LocalStop, StopDecision
from common.cluster.stop_messages import Freeze, LastUnit, SaveUnit, Welcome
from common.cluster.token_listener import TokenListener
from common.training.stop import SAVE, SIGNALS, Stop

log = logging.getLogger("lockstep")

ANSWER_SECONDS = 3.0  # how long the chief waits for the members' answers before a stop


class StopServer:
    """The chief's end of the connections. One thread does all the work; members may connect at any time.

    address: host, port and token that a StopMember needs, in types of JSON.

    Args:
        host: an address of this machine that the other ranks can reach.
        port: the port to listen on; 0 for any free one.

    Raises:
        OSError: The server cannot listen on this port.
    """

    def __init__(self, host: str, port: int = 0) -> None:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener, token = socket.create_server(address, family=family), secrets.token_hex()  # sets SO_REUSEADDR
        self.address: tuple[str, int, str] = (host, listener.getsockname()[1], token)
        self._listener = TokenListener(listener, token)
        self._wake_sender, self._wake_receiver = socket.socketpair()  # a byte ends the thread's `wait`
        self._wake_sender.setblocking(False)
        self._member_names: dict[JsonLineSocket, str] = {}
        # The decision under way, or the stop that was decided; None before, and after a checkpoint
        self._decision: StopDecision | None = None
        self._answer_deadline = 0.0
        self._lock = Lock()  # protects the attributes below, which other threads use too
        self._local_stop = LocalStop()
        self._requested_signal: int | None = None  # a signal, or SAVE, which is 0, that a rank has asked for
        self._closed = False
        self._welcomed = Semaphore(0)  # released once for each member
        self._thread = Thread(target=self._serve, name="stop-server", daemon=True)
        self._thread.start()

    def wait_for_members(self, count: int, seconds: float) -> bool:
        """Wait until `count` members have connected, and return whether they have. Call it once.

        The chief calls it before it starts a library that holds the interpreter's lock, as TensorFlow does: this
        server's thread could not answer members meanwhile.
        """
        end = time.monotonic() + seconds
        return all(self._welcomed.acquire(timeout=max(0.0, end - time.monotonic())) for _ in range(count))

    def attach(self, stop: Stop) -> None:
        """Connect the chief's own Stop, before its first unit."""
        with self._lock:
            stop.connect(self)
            self._local_stop.attach(stop)

    def request(self, signum: int) -> None:
        """Ask for a stop of all ranks, or for a checkpoint. A stop, which saves one, replaces a pending checkpoint."""
        with self._lock:
            if self._closed:
                self._local_stop.stop_alone(signum)
            elif not self._requested_signal:  # None, or SAVE, which is 0
                self._requested_signal = signum
                self._wake_up()

    def wait(self, seconds: float) -> bool:
        """Return True at once: the chief waits for nobody."""
        return True

    def close(self) -> None:
        """Close all connections, so that the `wait` of each StopMember returns."""
        with self._lock:
            self._closed = True
            self._wake_up()
        self._thread.join(1.0)

    def _wake_up(self) -> None:
        with suppress(OSError):
            self._wake_sender.send(b".")

    def _serve(self) -> None:
        """Handle connections, messages and deadlines until the server is closed. Only its thread calls this."""
        while True:
            connections = {member.connection: member for member in self._member_names}
            readable, clients = self._listener.wait(
                [self._wake_receiver, *connections], self._seconds_to_answer_deadline()
            )
            with self._lock:
                for connection in readable:
                    if connection is self._wake_receiver:
                        self._wake_receiver.recv(MAX_LINE_BYTES)
                    else:
                        self._receive(connections[connection])
                for hello, client in clients:
                    self._add_member(client, hello)
                self._advance_decision()
                if self._closed:
                    self._close_connections()
                    return

    def _seconds_to_answer_deadline(self) -> float | None:
        """Return the seconds in which members may still answer before a stop; None if no answer is awaited."""
        if self._decision is None or self._decision.signum == SAVE or self._decision.last is not None:
            return None
        return max(0.0, self._answer_deadline - time.monotonic())

    def _is_answer_time_over(self) -> bool:
        return self._closed or time.monotonic() >= self._answer_deadline

    def _receive(self, member: JsonLineSocket) -> None:
        try:
            for message in member.receive():
                self._on_message(member, message)
        except BlockingIOError:
            return
        except OSError:
            self._drop(member)

    def _add_member(self, member: JsonLineSocket, hello: JsonObject) -> None:
        """Welcome a member whose first message, its Hello, had this run's token."""
        member.connection.setblocking(False)
        self._member_names[member] = str(hello.get("name"))
        try:
            member.send(Welcome(welcome=True))
            self._welcomed.release()
            if self._decision is not None:
                member.send(Freeze(freeze=self._decision.signum))
                if self._decision.last is None:
                    self._decision.awaited.add(member)
                else:
                    member.send(LastUnit(last=self._decision.last))
        except OSError:
            self._drop(member)

    def _on_message(self, member: JsonLineSocket, message: JsonObject) -> None:
        match message:
            case {"request": int(signum)} if signum in SIGNALS:
                self._requested_signal = self._requested_signal or signum
            case {"begun": int(begun)} if self._decision is not None:
                self._decision.record_answer(member, begun)
            case _:
                raise ConnectionError(f"no message of a member: {message}")

    def _drop(self, member: JsonLineSocket) -> None:
        """Close the connection to a member. The chief no longer waits for its answer."""
        del self._member_names[member]
        if self._decision is not None:
            self._decision.awaited.discard(member)
        member.connection.close()

    def _advance_decision(self) -> None:
        """Begin the decision that was requested, and complete it once all answers have arrived or their time is over.

        A stop replaces a checkpoint that is not decided yet: the ranks are frozen for it already.
        """
        decision, requested = self._decision, self._requested_signal
        if requested is not None and (decision is None or decision.signum != requested):
            self._decision = decision = StopDecision(requested, self._local_stop.freeze(requested), self._member_names)
            self._answer_deadline = time.monotonic() + ANSWER_SECONDS
            self._broadcast(Freeze(freeze=requested))
        if decision is not None and decision.signum == SAVE:
            if decision.decide():  # true only once
                assert decision.last is not None
                self._decision = self._requested_signal = None
                self._local_stop.save_after(decision.last)
                self._broadcast(SaveUnit(save=decision.last))
        elif decision is not None and decision.decide(at_once=self._is_answer_time_over()):
            assert decision.last is not None
            self._local_stop.decide(decision.last)
            self._broadcast(LastUnit(last=decision.last))
            if silent := sorted(name for member, name in self._member_names.items() if member in decision.awaited):
                log.warning("stopping without an answer from %s", ", ".join(silent))

    def _broadcast(self, message: Freeze | LastUnit | SaveUnit) -> None:
        for member in list(self._member_names):
            try:
                member.send(message)
            except OSError:
                self._drop(member)

    def _close_connections(self) -> None:
        for member in list(self._member_names):
            self._drop(member)
        for open_socket in (self._listener, self._wake_sender, self._wake_receiver):
            open_socket.close()
