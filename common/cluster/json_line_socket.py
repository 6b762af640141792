"""JSON objects over a TCP connection, one object per line."""

import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

MAX_LINE_BYTES = 4096

JsonObject = dict[str, object]


class JsonLineSocket:
    """A connection that carries one JSON object per line.

    All methods except `shut_down` and `iterate` raise OSError if the connection is broken, or if the other end sends
    anything that is not such a line.

    Args:
        connection: the connected socket. Its timeout applies to every read.
        max_line_bytes: the longest line that is accepted, so that a client cannot fill the memory.
    """

    def __init__(self, connection: socket.socket, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self.connection = connection
        self._max_line_bytes = max_line_bytes
        self._incomplete_line = b""

    def send(self, message: Mapping[str, object]) -> None:
        """Send one object."""
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[JsonObject]:
        """Read once and return the objects that are complete by then; there may be none."""
        return self._parse(self.connection.recv(MAX_LINE_BYTES))

    def receive_next(self) -> list[JsonObject]:
        """Read once, but not beyond the end of a line, since other data may follow. Return one object or none."""
        waiting = self.connection.recv(MAX_LINE_BYTES, socket.MSG_PEEK)
        return self._parse(self.connection.recv(waiting.find(b"\n") + 1 or len(waiting)))

    def receive_one(self, seconds: float) -> JsonObject:
        """Wait for one object. Raise TimeoutError if it is not complete after `seconds`, whatever arrives meanwhile."""
        end = time.monotonic() + seconds
        while True:
            self.connection.settimeout(max(0.001, end - time.monotonic()))
            if messages := self.receive_next():
                return messages[0]
            if time.monotonic() >= end:
                raise TimeoutError("the object is not complete in time")

    def shut_down(self) -> None:
        """End the connection in both directions, so that a thread that reads from it ends, too."""
        with suppress(OSError):  # the other end has closed it before
            self.connection.shutdown(socket.SHUT_RDWR)

    def iterate(self) -> Iterator[JsonObject]:
        """Yield the objects until the connection breaks, or until the other end sends anything else."""
        with suppress(OSError):
            while True:
                yield from self.receive()

    def _parse(self, data: bytes) -> list[JsonObject]:
        if not data:
            raise ConnectionError("the other end has closed the connection")
        *lines, self._incomplete_line = (self._incomplete_line + data).split(b"\n")
        if len(self._incomplete_line) > self._max_line_bytes:
            raise ConnectionError("the line is too long")
        try:
            messages = [json.loads(line) for line in lines]
        except (ValueError, RecursionError) as error:
            raise ConnectionError("the line is not JSON") from error
        if not all(isinstance(message, dict) for message in messages):
            raise ConnectionError("the line is not a JSON object")
        return messages
