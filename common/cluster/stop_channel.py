"""How the ranks of a run agree on the last unit before a stop: one TCP connection from each rank to the chief.

Threads answer, also while the main thread is inside a collective, so no answer waits for another rank. A rank that is
frozen before unit k while another has begun unit k will be told to run unit k too, since the last unit is the maximum
of all counts. Thus every collective that one rank enters is entered by all of them. The unit after which all save a
checkpoint is agreed on in the same way, but the chief waits for every count, as the next step would.

Messages are JSON objects, one on a line. To the chief: {"hello": token, "name": ...}, {"request": signum},
{"begun": count}. From the chief: {"welcome": true}, {"freeze": signum or SAVE}, {"last": unit}, {"save": unit}.
"""

import hmac
import logging
import secrets
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from threading import Event, Lock, Semaphore, Thread
from typing import Any

from common.cluster.json_line_socket import LONGEST_LINE, JsonLineSocket
from common.cluster.stop_decision import LocalStop, StopDecision
from common.training.stop import SAVE, SIGNALS, Stop

log = logging.getLogger("lockstep")

HELLO_SECONDS = 5.0  # how long a new connection has to say what it is
ANSWER_SECONDS = 3.0  # how long the chief waits for the members' counts


class StopServer:
    """The chief's end. One thread does all the work; members may connect at any time.

    host: an address of this machine that the other ranks can reach. Raises OSError if it cannot listen there.
    address: what a StopMember needs; it can be sent as JSON.
    """

    def __init__(self, host: str, port: int = 0) -> None:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._listener = socket.create_server(address, family=family)  # sets SO_REUSEADDR
        self._listener.setblocking(False)
        self._token = secrets.token_hex()
        self.address: tuple[str, int, str] = (host, self._listener.getsockname()[1], self._token)
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._selector = DefaultSelector()
        self._selector.register(self._listener, EVENT_READ)
        self._selector.register(self._woken, EVENT_READ)
        self._strangers: dict[JsonLineSocket, float] = {}  # connections without a hello yet, and their deadlines
        self._members: dict[JsonLineSocket, str] = {}  # and their names
        self._agreement: StopDecision | None = None
        self._deadline = 0.0  # of the answers
        self._lock = Lock()  # of all below, which other threads use too
        self._own = LocalStop()
        self._requested: int | None = None
        self._closed = False
        self._welcomed = Semaphore(0)  # released for each member
        self._thread = Thread(target=self._serve, name="stop-server", daemon=True)
        self._thread.start()

    def wait_for_members(self, count: int, seconds: float) -> bool:
        """Wait until so many members have connected. Returns whether they have. Call it once.

        Libraries that hold the interpreter's lock while they start, as TensorFlow does, would keep members waiting.
        """
        end = time.monotonic() + seconds
        return all(self._welcomed.acquire(timeout=max(0.0, end - time.monotonic())) for _ in range(count))

    def attach(self, stop: Stop) -> None:
        """Connect the chief's own Stop, before its first unit."""
        with self._lock:
            stop.connect(self)
            self._own.attach(stop)

    def request(self, signum: int) -> None:
        """Ask for a stop of all ranks, or for a checkpoint, which a stop would save too."""
        with self._lock:
            if self._closed:
                self._own.stop_alone(signum)
            elif not self._requested:
                self._requested = signum
                self._wake_up()

    def wait(self, seconds: float) -> bool:
        """The chief waits for nobody."""
        return True

    def close(self) -> None:
        """Close all connections, which ends the members' `wait`."""
        with self._lock:
            self._closed = True
            self._wake_up()
        self._thread.join(1.0)

    def _wake_up(self) -> None:
        with suppress(OSError):
            self._wake.send(b".")

    def _serve(self) -> None:
        while True:
            ready = self._selector.select(self._patience())
            with self._lock:
                for key, _ in ready:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj is self._woken:
                        self._woken.recv(LONGEST_LINE)
                    else:
                        self._receive(key.data)
                for stranger in [each for each, deadline in self._strangers.items() if time.monotonic() >= deadline]:
                    self._drop(stranger)
                self._agree()
                if self._closed:
                    return self._hang_up()

    def _patience(self) -> float | None:
        """Seconds until the next deadline."""
        deadlines = list(self._strangers.values())
        if self._agreement is not None and self._agreement.signum != SAVE and self._agreement.last is None:
            deadlines.append(self._deadline)
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _accept(self) -> None:
        with suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            lines = JsonLineSocket(connection)
            self._strangers[lines] = time.monotonic() + HELLO_SECONDS
            self._selector.register(connection, EVENT_READ, lines)

    def _receive(self, sender: JsonLineSocket) -> None:
        if sender not in self._strangers and sender not in self._members:
            return  # dropped since it became ready
        try:
            for message in sender.receive():
                if sender in self._members:
                    self._hear(sender, message)
                else:
                    self._welcome(sender, message)
        except BlockingIOError:
            return
        except OSError:
            self._drop(sender)

    def _welcome(self, stranger: JsonLineSocket, message: dict[str, Any]) -> None:
        token = str(message.get("hello")).encode(errors="replace")
        if not hmac.compare_digest(token, self._token.encode()):
            raise ConnectionError("the token is not this run's")
        del self._strangers[stranger]
        self._members[stranger] = str(message.get("name"))
        stranger.send({"welcome": True})
        self._welcomed.release()
        if self._agreement is not None:
            stranger.send({"freeze": self._agreement.signum})
            if self._agreement.last is None:
                self._agreement.awaited.add(stranger)
            else:
                stranger.send({"last": self._agreement.last})

    def _hear(self, member: JsonLineSocket, message: dict[str, Any]) -> None:
        match message:
            case {"request": int(signum)} if signum in SIGNALS:
                self._requested = self._requested or signum
            case {"begun": int(begun)} if self._agreement is not None:
                self._agreement.answer(member, begun)
            case _:
                raise ConnectionError(f"no message of a member: {message}")

    def _drop(self, peer: JsonLineSocket) -> None:
        self._strangers.pop(peer, None)
        self._members.pop(peer, None)
        if self._agreement is not None:
            self._agreement.awaited.discard(peer)
        with suppress(KeyError):
            self._selector.unregister(peer.connection)
        peer.connection.close()

    def _agree(self) -> None:
        """Start the agreement on what was requested, and end it if nothing more is to be waited for.

        A stop takes the place of a checkpoint that is not agreed on yet: its ranks are frozen already.
        """
        agreement, requested = self._agreement, self._requested
        if requested is not None and (agreement is None or agreement.signum != requested):
            self._agreement = agreement = StopDecision(requested, self._own.freeze(requested), self._members)
            self._deadline = time.monotonic() + ANSWER_SECONDS
            self._tell_all({"freeze": requested})
        if agreement is not None and agreement.signum == SAVE:
            if agreement.decide():
                self._agreement = self._requested = None
                self._own.save_after(agreement.last)
                self._tell_all({"save": agreement.last})
        elif agreement is not None and agreement.decide(self._closed or time.monotonic() >= self._deadline):
            assert agreement.last is not None
            self._own.decide(agreement.last)
            self._tell_all({"last": agreement.last})
            if silent := sorted(name for member, name in self._members.items() if member in agreement.awaited):
                log.warning("stopping without an answer from %s", ", ".join(silent))

    def _tell_all(self, message: Mapping[str, object]) -> None:
        for member in list(self._members):
            try:
                member.send(message)
            except OSError:
                self._drop(member)

    def _hang_up(self) -> None:
        for peer in [*self._strangers, *self._members]:
            self._drop(peer)
        self._selector.close()
        for each in (self._listener, self._wake, self._woken):
            each.close()


class StopMember:
    """Another rank's end, which its own thread listens at. One without a Stop answers that it has begun no unit.

    address: the StopServer's. name: what the chief calls this rank in its log. timeout: seconds to connect, and again
    to be welcomed. Raises OSError if the chief cannot be reached or does not accept the token.
    """

    def __init__(self, address: tuple[str, int, str], name: str, timeout: float = 30.0) -> None:
        host, port, token = address
        self._lines = JsonLineSocket(socket.create_connection((host, port), timeout))
        messages: list[dict[str, Any]] = []
        try:
            self._lines.send({"hello": token, "name": name})
            while not messages:  # the chief must know this rank before it begins a unit
                messages = self._lines.receive()
            if "welcome" not in messages[0]:
                raise ConnectionError(f"{host}:{port} is not the chief of this run")
        except BaseException:
            self._lines.connection.close()
            raise
        self._lines.connection.settimeout(None)
        self._lock = Lock()  # of all below
        self._own = LocalStop()
        self._requested: int | None = None
        self._ended = Event()
        Thread(target=self._listen, args=(messages[1:],), name="stop-member", daemon=True).start()

    def attach(self, stop: Stop) -> None:
        """Connect this rank's Stop, before its first unit."""
        with self._lock:
            stop.connect(self)
            self._own.attach(stop)

    def request(self, signum: int) -> None:
        """Ask for a stop of all ranks; stops this one alone if the chief has gone."""
        with self._lock:
            self._requested = signum
            if self._ended.is_set():
                self._own.stop_alone(signum)
                return
            with suppress(OSError):  # the thread sees it too
                self._lines.send({"request": signum})

    def wait(self, seconds: float) -> bool:
        """Wait until the chief has closed the connection. Returns whether it has within these seconds."""
        return self._ended.wait(seconds)

    def close(self) -> None:
        """Leave. From then on a stop is decided alone."""
        with suppress(OSError):
            self._lines.connection.shutdown(socket.SHUT_RDWR)
        self._ended.wait(1.0)

    def _listen(self, messages: list[dict[str, Any]]) -> None:
        with suppress(OSError):
            while True:
                for message in messages:
                    self._obey(message)
                messages = self._lines.receive()
        with self._lock:
            self._ended.set()
            signum = self._own.signum or self._requested
            if signum is not None:  # no decision will come
                self._own.stop_alone(signum)
            else:
                self._own.save_after(None)
        self._lines.connection.close()

    def _obey(self, message: dict[str, Any]) -> None:
        with self._lock:
            match message:
                case {"freeze": int(signum)}:
                    self._lines.send({"begun": self._own.freeze(signum)})
                case {"last": int(last)}:
                    self._own.decide(last)
                case {"save": int(unit)}:
                    self._own.save_after(unit)
