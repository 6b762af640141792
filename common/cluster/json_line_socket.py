"""JSON objects over a TCP connection, one on a line."""

import json
import socket
from collections.abc import Mapping
from typing import Any

LONGEST_LINE = 4096  # bytes


class JsonLineSocket:
    """JSON objects over a connection. All methods raise OSError if it is broken or sends anything else."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._rest = b""

    def send(self, message: Mapping[str, object]) -> None:
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]]:
        """The objects that are complete after one read, which may be none."""
        data = self.connection.recv(LONGEST_LINE)
        if not data:
            raise ConnectionError("the other end has closed the connection")
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            raise ConnectionError("the line is too long")
        try:
            messages = [json.loads(line) for line in lines]
        except (ValueError, RecursionError) as error:
            raise ConnectionError("the line is not JSON") from error
        if not all(isinstance(message, dict) for message in messages):
            raise ConnectionError("the line is not a JSON object")
        return messages
