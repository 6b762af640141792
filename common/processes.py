"""Start, watch and end the processes of a run on this machine. Nothing outlives its parent, even one killed by SIGKILL.

A child's standard input is a pipe that its parent never writes to: it closes when the parent ends, however it ends.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, TypeVar

from common.errors import UserError

log = logging.getLogger("lockstep")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_SECONDS = 7.0  # between a stop request and SIGKILL
STRAGGLER_SECONDS = 3.0  # between the end of one process and SIGKILL for the others
POLL_SECONDS = 0.05
USER_ERROR = 2  # the exit code of a process that a user can mend

T = TypeVar("T")


class Interrupted(Exception):
    """A signal asked the run to stop."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.exit_code = 128 + signum


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

    def check(self) -> None:
        """Raise Interrupted if a stop was requested."""
        if self.signum is not None:
            raise Interrupted(self.signum)

    def restore(self) -> None:
        """Give the signals back to whoever had them."""
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)


def die_with_parent() -> None:
    """In a child that `supervise` started: end it, and all that it started, as soon as the parent is gone."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


@dataclass(frozen=True)
class Process:
    """A process to start; `environment` is added to this process's own. One that `serves` never ends by itself."""

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    serves: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a group of processes ended: exit code of the run, and which process failed, if one did."""

    exit_code: int
    problem: str | None


def supervise(
    processes: list[Process],
    log_path: Path,
    chief_speaks: bool = True,
    lost: Callable[[], str | None] = lambda: None,
) -> Outcome:
    """Run the processes of a run to their end; the first is the chief, whose end ends the others.

    The chief has this process's output where it `speaks`, the others write to `log_path`. A stop signal goes to the
    chief alone: it leaves at a step of its choosing and the others, who cannot go on without it, are ended after it.
    lost: what is gone elsewhere, without which they cannot go on either.
    """
    stop = Stop()
    running: list[subprocess.Popen[bytes]] = []
    try:
        with log_path.open("ab") as output:
            for index, process in enumerate(processes):
                running.append(_start(process, None if index == 0 and chief_speaks else output))
        return _watch(processes, running, stop, lost)
    finally:
        for child in running:
            _kill(child)
        stop.restore()


def _start(process: Process, output: IO[bytes] | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        process.command,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        env={**os.environ, **process.environment},
        start_new_session=True,  # the terminal's Ctrl-C reaches this process only
    )


def _watch(
    processes: list[Process], running: list[subprocess.Popen[bytes]], stop: Stop, lost: Callable[[], str | None]
) -> Outcome:
    chief = running[0]
    deadline: float | None = None
    problem = None
    while chief.poll() is None:
        time.sleep(POLL_SECONDS)
        if stop.signum is not None and deadline is None:
            chief.send_signal(stop.signum)
            deadline = time.monotonic() + GRACE_SECONDS
        for process, child in zip(processes, running, strict=True):
            if child is not chief and child.poll() and problem is None and stop.signum is None:
                problem = f"{process.name} ended with {_how(child.returncode)}"
                deadline = time.monotonic() + STRAGGLER_SECONDS
        if problem is None and stop.signum is None and (problem := lost()):
            deadline = time.monotonic() + STRAGGLER_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            break
    if chief.poll() == 0:
        problem = None  # the chief has all it needed: whoever fell had no more to do
    if stop.signum is not None and chief.poll() != 0:
        return Outcome(128 + stop.signum, f"stopped by {signal.Signals(stop.signum).name}")
    if problem is None and chief.returncode:
        fallen = [pair for pair in zip(processes, running, strict=True) if pair[1].poll()]
        killed = [pair for pair in fallen if pair[1].returncode < 0]  # more likely the cause than what ended by itself
        process, child = (killed or fallen)[0]
        problem = f"{process.name} ended with {_how(child.returncode)}"
    end = time.monotonic() + STRAGGLER_SECONDS
    finishing = [child for process, child in zip(processes, running, strict=True) if not process.serves]
    while problem is None and time.monotonic() < end and any(child.poll() is None for child in finishing):
        time.sleep(POLL_SECONDS)
    return Outcome(chief.returncode if chief.returncode == USER_ERROR else 1 if problem else 0, problem)


def _how(returncode: int) -> str:
    return f"exit code {returncode}" if returncode >= 0 else f"signal {signal.Signals(-returncode).name}"


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End a child and all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdin is not None:
        child.stdin.close()


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
