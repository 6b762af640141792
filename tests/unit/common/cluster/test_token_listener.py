"""Tests of clients that never show the token of the run: they delay nobody and get nothing."""

import json
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from common.cluster import json_line_socket, token_listener
from common.cluster.json_line_socket import MAX_LINE_BYTES, JsonLineSocket
from common.cluster.token_listener import TokenListener

Connect = Callable[[bytes], socket.socket]
SECONDS = 60.0  # only ends a hang


@pytest.fixture
def listener() -> Iterator[tuple[TokenListener, Connect]]:
    """Return a listener with the token "secret", and a function that connects to it and sends some bytes."""
    server = socket.create_server(("127.0.0.1", 0))
    listener, clients = TokenListener(server, "secret"), []

    def connect(content: bytes) -> socket.socket:
        clients.append(socket.create_connection(server.getsockname()[:2], SECONDS))
        clients[-1].sendall(content)
        return clients[-1]

    yield listener, connect
    listener.close()
    for client in clients:
        client.close()


def hello(token: object = "secret", **fields: object) -> bytes:
    return json.dumps({"hello": token, **fields}).encode() + b"\n"


@pytest.mark.parametrize(
    "content",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\n",
        b"\n",
        b"[]\n",
        b"5\n",
        b"{}\n",
        hello("guess"),
        hello(None),
        hello(["secret"]),
    ],
)
def test_a_client_without_the_token_is_closed(listener: tuple[TokenListener, Connect], content: bytes) -> None:
    stranger, member = listener[1](content), listener[1](hello(name="a"))
    _, clients = listener[0].wait([], SECONDS)
    assert [message for message, _ in clients] == [{"hello": "secret", "name": "a"}]
    assert member.fileno() != stranger.fileno() and read_end(stranger)


def test_silent_clients_delay_nobody(listener: tuple[TokenListener, Connect]) -> None:
    for content in [b""] * 10 + [hello()[:-1]] * 10:
        listener[1](content)
    listener[1](hello(name="a"))
    assert [message["name"] for message, _ in listener[0].wait([], SECONDS)[1]] == ["a"]
    assert listener[0].wait([], 0.05) == ([], []), "silent clients must not end the wait"


def test_a_late_hello_is_not_waited_for(
    listener: tuple[TokenListener, Connect], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is for the whole hello: a client cannot stretch it by sending one byte at a time.

    The hello stays shorter than the longest line, which would close the connection, too.
    """
    monkeypatch.setattr(token_listener, "HELLO_SECONDS", 0.05)
    slow = listener[1](b"")
    closed = False
    for byte in b'{"hello": "secret"' + b" " * (MAX_LINE_BYTES // 2):
        try:
            slow.send(bytes([byte]))
        except OSError:
            closed = True
            break
        assert listener[0].wait([], 0.001) == ([], [])
    assert closed


def test_the_oldest_silent_client_makes_room(
    listener: tuple[TokenListener, Connect], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_listener, "MAX_UNAUTHENTICATED", 3)
    silent = [listener[1](b"") for _ in range(4)]
    listener[1](hello())
    assert len(listener[0].wait([], SECONDS)[1]) == 1
    assert read_end(silent[0])


def test_nothing_after_the_hello_is_lost(listener: tuple[TokenListener, Connect]) -> None:
    client = listener[1](hello() + b"\x00\x01raw")
    ((_, accepted),) = listener[0].wait([], SECONDS)[1]
    assert accepted.connection.recv(100) == b"\x00\x01raw"
    client.close()
    readable, clients = listener[0].wait([accepted.connection], SECONDS)
    assert (readable, clients) == ([accepted.connection], [])
    accepted.connection.close()


def test_one_object_has_a_limit_of_time() -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(b'{"a": 1}\n{"b"')
        line_socket = JsonLineSocket(here)
        assert line_socket.receive_one(SECONDS) == {"a": 1}
        with pytest.raises(TimeoutError):
            line_socket.receive_one(0.01)


def test_single_bytes_do_not_stretch_the_limit_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1_000))
    monkeypatch.setattr(json_line_socket, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    here, there = socket.socketpair()
    with here, there:
        there.sendall(b"{" * 100)
        line_socket = JsonLineSocket(SlowConnection(here))  # type: ignore[arg-type]
        with pytest.raises(TimeoutError):
            line_socket.receive_one(20)
        assert len(here.recv(100)) > 80, "the limit must end the wait while bytes still arrive"


class SlowConnection:
    """A connection that passes on one byte at each read."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.settimeout = connection, connection.settimeout

    def recv(self, size: int, flags: int = 0) -> bytes:
        return self.connection.recv(min(size, 1), flags)


def read_end(client: socket.socket) -> bool:
    """Return whether the other end has closed the connection without an answer."""
    try:
        return client.recv(100) == b""
    except ConnectionResetError:
        return True
