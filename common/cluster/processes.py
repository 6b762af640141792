"""What a process of a run needs: to be stopped by signals, to end with its parent, to find a port.

A child's standard input is a pipe that its parent never writes to: it closes when the parent ends, however it ends.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TypeVar

from common.errors import Interrupted, UserError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
RESTARTS = "LOCKSTEP_RESTARTS"  # tells a process how often its run has been started again
RETURNED = "LOCKSTEP_RETURNED"  # tells a process that it takes the place of one that fell while the run went on
FAILURE, USER_ERROR = 1, 2  # exit codes; the second is of what a user can mend

T = TypeVar("T")


class Stop:
    """Turns SIGINT, SIGTERM and SIGHUP into a request that the loop honours between two batches."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self._previous = {signum: signal.getsignal(signum) for signum in SIGNALS}
        self.listen()

    def listen(self) -> None:
        """Take the signals, also back from a library that has taken them."""
        for signum in SIGNALS:
            signal.signal(signum, self._request)

    def _request(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum

    def end(self, items: Iterable[T]) -> Iterator[T]:
        """The items, ending early once a stop is requested."""
        for item in items:
            if self.signum is not None:
                return
            yield item

    def interrupt(self, items: Iterable[T]) -> Iterator[T]:
        """The items, raising Interrupted once a stop is requested."""
        for item in items:
            self.check()
            yield item

    def check(self) -> None:
        """Raise Interrupted if a stop was requested."""
        if self.signum is not None:
            raise Interrupted(self.signum)

    def restore(self) -> None:
        """Give the signals back to whoever had them."""
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)


@contextmanager
def interruptible() -> Iterator[None]:
    """In the body SIGINT, SIGTERM and SIGHUP raise Interrupted, wherever it is."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise Interrupted(signum)

    previous = {signum: signal.signal(signum, interrupt) for signum in SIGNALS}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def die_with_parent() -> None:
    """In a child that `supervise` started: end it, and all that it started, as soon as the parent is gone."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Free ports that nobody else can take meanwhile; only a server that sets SO_REUSEPORT can listen on them."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.bind(("", 0))
        yield [each.getsockname()[1] for each in sockets]


def check_ports(ports: Sequence[int]) -> None:
    """Raises UserError where something on this machine listens on one of these."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError as error:
                raise UserError(
                    f"cluster.port: port {port} is in use on this host ({error.strerror}); give another"
                ) from error


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module with this interpreter."""
    return [sys.executable, "-m", module, *arguments]
