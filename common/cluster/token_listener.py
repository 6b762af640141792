"""A listening socket that reads nothing from a client before the client has shown the token of the run."""

import hmac
import math
import socket
import time
from collections.abc import Collection
from contextlib import suppress
from multiprocessing.connection import wait

from common.cluster.json_line_socket import MAX_LINE_BYTES, JsonLineSocket, JsonObject

HELLO_SECONDS = 5.0  # how long a new connection may take to send its whole hello
MAX_UNAUTHENTICATED = 64  # connections without a hello; a further connection closes the oldest


def shows_token(hello: JsonObject, token: str) -> bool:
    """Check whether a hello, the first message of a connection, has the token."""
    return hmac.compare_digest(str(hello.get("hello")).encode(errors="replace"), token.encode())


class TokenListener:
    """A listening socket. The first message of each client is its hello: a JSON object whose key "hello" is the token.

    New connections are read side by side, so a silent or slow one delays no other. A connection is closed if its hello
    is not complete in time or has another token.

    Args:
        listener: the listening socket, which the object owns from then on.
        token: the token; a run whose processes share none has "".
        max_line_bytes: the longest hello that is accepted.
    """

    def __init__(self, listener: socket.socket, token: str, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        listener.setblocking(False)
        self._listener, self._token, self._max_line_bytes = listener, token, max_line_bytes
        # The time at which each connection that has not sent its hello is closed; the oldest connection comes first
        self._deadlines: dict[JsonLineSocket, float] = {}

    def wait(
        self, members: Collection[socket.socket], timeout: float | None = None
    ) -> tuple[list[socket.socket], list[tuple[JsonObject, JsonLineSocket]]]:
        """Wait until one of `members` can be read or a client has shown the token.

        Connections without the token do not end the wait.

        Args:
            members: connections to wait for, too.
            timeout: seconds to wait; None for no limit.

        Returns:
            The members that can be read, and the hello and the connection of each new client. Nothing has been read
            after the hello, and the connection is blocking. Both lists are empty after `timeout` seconds.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            unauthenticated = [client.connection for client in self._deadlines]
            ready = set(wait([self._listener, *unauthenticated, *members], self._seconds_until(end)))
            clients = []
            for client in [client for client in self._deadlines if client.connection in ready]:
                if (hello := self._read(client)) is not None:
                    clients.append((hello, client))
            if self._listener in ready:
                self._accept()
            now = time.monotonic()
            for client in [late for late, deadline in self._deadlines.items() if now >= deadline]:
                self._drop(client)
            if clients or not ready.isdisjoint(members) or now >= end:
                return [member for member in members if member in ready], clients

    def close(self) -> None:
        """Close the listening socket and the connections that have not shown the token."""
        for client in [*self._deadlines]:
            self._drop(client)
        self._listener.close()

    def _seconds_until(self, end: float) -> float | None:
        """Return the seconds until `end` or until a hello is late; None if neither has a limit."""
        deadline = min([end, *self._deadlines.values()])
        return None if deadline == math.inf else max(0.0, deadline - time.monotonic())

    def _accept(self) -> None:
        with suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._deadlines[JsonLineSocket(connection, self._max_line_bytes)] = time.monotonic() + HELLO_SECONDS
            if len(self._deadlines) > MAX_UNAUTHENTICATED:
                self._drop(next(iter(self._deadlines)))

    def _read(self, client: JsonLineSocket) -> JsonObject | None:
        """Read from a connection without a hello. Return the hello if it is complete and has the token."""
        try:
            messages = client.receive_next()
        except BlockingIOError:
            return None
        except OSError:
            self._drop(client)
            return None
        if not messages:
            return None
        if not shows_token(messages[0], self._token):
            self._drop(client)
            return None
        del self._deadlines[client]
        client.connection.setblocking(True)
        return messages[0]

    def _drop(self, client: JsonLineSocket) -> None:
        del self._deadlines[client]
        client.connection.close()
