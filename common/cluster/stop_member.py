"""A member's end of the connection over which the ranks of a run agree on the last unit before a stop.

A member is a rank other than the chief. A unit is one batch of training or evaluation, as common.training.stop counts
them. A frozen rank begins no further unit until the chief has decided which unit is the last.
"""

import socket
from contextlib import suppress
from threading import Event, Lock, Thread

from common.cluster.json_line_socket import JsonLineSocket, JsonObject
from common.cluster.stop_decision import LocalStop
from common.cluster.stop_messages import BegunUnits, Hello, StopRequest
from common.training.stop import Stop


class StopMember:
    """A member's connection to the chief. Until a Stop is attached, it answers that this rank has begun no unit.

    Args:
        address: the address of the StopServer: host, port and token.
        name: the name of this rank in the chief's log.
        timeout: seconds to connect, and again to be welcomed.

    Raises:
        OSError: the chief cannot be reached or does not accept the token.
    """

    def __init__(self, address: tuple[str, int, str], name: str, timeout: float = 30.0) -> None:
        host, port, token = address
        self._chief = JsonLineSocket(socket.create_connection((host, port), timeout))
        messages: list[JsonObject] = []
        try:
            self._chief.send(Hello(hello=token, name=name))
            while not messages:  # the chief must know this rank before it begins a unit
                messages = self._chief.receive()
            if "welcome" not in messages[0]:
                raise ConnectionError(f"{host}:{port} is not the chief of this run")
        except BaseException:
            self._chief.connection.close()
            raise
        self._chief.connection.settimeout(None)
        self._lock = Lock()  # protects the attributes below
        self._local_stop = LocalStop()  # this rank's Stop, or a substitute until one is attached
        self._requested: int | None = None  # the signal for which this rank has asked for a stop
        self._ended = Event()  # set once the connection is closed
        Thread(target=self._listen, args=(messages[1:],), name="stop-member", daemon=True).start()

    def attach(self, stop: Stop) -> None:
        """Connect this rank's Stop, before its first unit."""
        with self._lock:
            stop.connect(self)
            self._local_stop.attach(stop)

    def request(self, signum: int) -> None:
        """Ask for a stop of all ranks. If the chief has ended, stop this rank alone."""
        with self._lock:
            self._requested = signum
            if self._ended.is_set():
                self._local_stop.stop_alone(signum)
                return
            with suppress(OSError):  # the listening thread notices a broken connection, too
                self._chief.send(StopRequest(request=signum))

    def wait(self, seconds: float) -> bool:
        """Wait until the chief has closed the connection. Return whether it has within these seconds."""
        return self._ended.wait(seconds)

    def close(self) -> None:
        """Leave the group of ranks. From then on this rank decides alone about a stop."""
        with suppress(OSError):
            self._chief.connection.shutdown(socket.SHUT_RDWR)
        self._ended.wait(1.0)

    def _listen(self, messages: list[JsonObject]) -> None:
        """Obey the chief until the connection ends, in a thread. messages: arrived with the welcome."""
        with suppress(OSError):
            while True:
                for message in messages:
                    self._on_command(message)
                messages = self._chief.receive()
        with self._lock:
            self._ended.set()
            signum = self._local_stop.signum or self._requested
            if signum is not None:  # no decision will arrive
                self._local_stop.stop_alone(signum)
            else:
                self._local_stop.save_after(None)  # lets a rank continue that was frozen for a checkpoint
        self._chief.connection.close()

    def _on_command(self, message: JsonObject) -> None:
        with self._lock:
            match message:
                case {"freeze": int(signum)}:
                    self._chief.send(BegunUnits(begun=self._local_stop.freeze(signum)))
                case {"last": int(last)}:
                    self._local_stop.decide(last)
                case {"save": int(unit)}:
                    self._local_stop.save_after(unit)
