"""Start, supervision and end of a run's processes on this machine. No process outlives its parent.

The first process is the chief. When the chief ends, the run ends. A process that SIGSTOP has suspended neither runs nor
ends.
"""

import logging
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import psutil

from common.cluster.processes import IS_REPLACEMENT
from common.errors import FAILURE, USER_ERROR
from common.training.stop import SIGNALS, Stop

log = logging.getLogger("lockstep")

GRACE_SECONDS = 9.0  # time between a stop request and SIGKILL
STRAGGLER_SECONDS = 3.0  # time between the end of one process and SIGKILL for the others
POLL_SECONDS = 0.05
SUSPENSION_POLL_SECONDS = 1.0  # time between two searches for suspended processes
MIN_LIFETIME_SECONDS = 10.0  # a process that crashes sooner after its start is not started again
# The signal that ended a process, by its return code: Lockstep exits with 128 + signal, subprocess reports -signal.
INTERRUPTED = {128 + signum: signum for signum in SIGNALS} | {-signum: signum for signum in SIGNALS}


@dataclass(frozen=True)
class Process:
    """A process to start.

    Attributes:
        name: the name of the process in messages, such as "rank 0".
        command: the program and its arguments.
        environment: variables that are added to the inherited environment.
        serves: whether the process never ends by itself, as a parameter server.
        restartable: whether a crashed process is started again while the run continues.
    """

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    serves: bool = False
    restartable: bool = False


@dataclass(frozen=True)
class Outcome:
    """The end of a run: its exit code, and the problem that ended it early, such as "rank 1 ended with exit code 1"."""

    exit_code: int
    problem: str | None


@dataclass(frozen=True)
class PeerStatus:
    """The state of the run's other hosts.

    Attributes:
        error: returns the error if another host was lost or has failed, else None.
        stop_signal: returns the signal if one has stopped another host's command, else None.
    """

    error: Callable[[], str | None] = lambda: None
    stop_signal: Callable[[], int | None] = lambda: None


def supervise(
    processes: list[Process],
    log_path: Path,
    chief_inherits_stdio: bool = True,
    peers: PeerStatus | None = None,
    on_started: Callable[[dict[str, int]], None] = lambda pids: None,
    max_suspended_seconds: float = math.inf,
) -> Outcome:
    """Run the processes of a run until the first one, the chief, ends. Then end the others.

    A signal that stops the run is passed to the chief alone, which agrees with the other ranks on the last step.

    Args:
        processes: the processes to start; the first one is the chief.
        log_path: the file to which the processes write.
        chief_inherits_stdio: whether the chief writes to the standard output and error of this process instead.
        peers: the state of the run's other hosts.
        on_started: called with the process ids by name, whenever a process was started.
        max_suspended_seconds: how long a process may be suspended before it counts as crashed.
    """
    stop = Stop()
    with log_path.open("ab") as output:
        chief_output = None if chief_inherits_stdio else output
        group = _ProcessGroup(processes, chief_output, output, on_started, max_suspended_seconds)
        try:
            group.start()
            return group.watch(stop, peers or PeerStatus())
        finally:
            group.kill()
            stop.restore()


class _ProcessGroup:
    """The running processes of a run on this machine."""

    def __init__(
        self,
        processes: list[Process],
        chief_output: IO[bytes] | None,
        output: IO[bytes],
        on_started: Callable[[dict[str, int]], None],
        max_suspended_seconds: float,
    ) -> None:
        self.processes = processes
        self.on_started = on_started
        self.max_suspended_seconds = max_suspended_seconds
        self.outputs = [chief_output, *[output] * (len(processes) - 1)]  # None is the output of this process
        self.children: list[subprocess.Popen[bytes]] = []
        self.started_at: list[float] = []
        self.suspended_since: dict[int, float] = {}  # time at which each suspended process was first seen, by its id
        self.last_suspension_poll = 0.0

    def start(self) -> None:
        """Start all processes."""
        for process, output in zip(self.processes, self.outputs, strict=True):
            self.children.append(_start(process, output))
            self.started_at.append(time.monotonic())
        self._report_started()

    def watch(self, stop: Stop, peers: PeerStatus) -> Outcome:
        """Wait until the chief ends, a process that the run needs crashes, or a stop takes too long."""
        deadline, problem = math.inf, None  # after the deadline, `kill` ends the remaining processes
        signum: int | None = None
        while time.monotonic() < deadline:
            if self.children[0].poll() is not None and (signum is not None or not self._should_restart(0)):
                break
            time.sleep(POLL_SECONDS)
            if signum is None:
                signum = stop.signum or peers.stop_signal()
                if signum is not None:
                    self.children[0].send_signal(signum)
                else:
                    signum = self._forward_interruption()
                if signum is not None:
                    deadline = time.monotonic() + GRACE_SECONDS
            if signum is None and problem is None and (problem := self._handle_crashes() or peers.error()):
                deadline = time.monotonic() + STRAGGLER_SECONDS
        return self._conclude(signum, problem)

    def _conclude(self, signum: int | None, problem: str | None) -> Outcome:
        """Return the outcome of a run that was ended by a signal, by a problem, or by the end of its chief."""
        returncode = self.children[0].poll()
        if signum is None and problem is None and returncode is not None:
            signum = INTERRUPTED.get(returncode)
        if returncode == 0:
            problem = None  # the chief has finished, so the process that crashed had nothing left to do
        if signum is not None and returncode != 0:
            return Outcome(128 + signum, f"stopped by {signal.Signals(signum).name}")
        if problem is None and returncode:
            problem = self._find_cause()
        if problem is None:
            self._wait_for_stragglers()
        is_user_error = problem is not None and USER_ERROR in [child.poll() for child in self.children]
        return Outcome(USER_ERROR if is_user_error else FAILURE if problem else 0, problem)

    def _forward_interruption(self) -> int | None:
        """Return the signal that has ended a process other than the chief, and send it to the chief too."""
        for child in self.children[1:]:
            if (signum := INTERRUPTED.get(child.poll() or 0)) is not None:
                self.children[0].send_signal(signum)
                return signum
        return None

    def _handle_crashes(self) -> str | None:
        """Restart each crashed or suspended process that may be restarted. Return the problem if one may not be.

        A process that a signal has ended since the last call of `_forward_interruption` has not crashed: the next call
        handles it.
        """
        suspended = self._find_suspended()
        for index, (process, child) in enumerate(zip(self.processes, self.children, strict=True)):
            if index in suspended:
                failure = f"has been stopped for {self.max_suspended_seconds:g} s"
                _kill(child)
            elif child.poll() in (None, 0, *INTERRUPTED) or (index == 0 and not self._should_restart(index)):
                continue  # it runs, has finished or was interrupted; `watch` handles the end of the chief
            else:
                failure = f"ended with {_describe_returncode(child.returncode)}"
            if not self._should_restart(index):
                return f"{process.name} {failure}"
            log.warning("%s %s; starting it again", process.name, failure)
            _kill(child)  # ends the processes that the crashed one has started
            replacement = replace(process, environment={**process.environment, IS_REPLACEMENT: "1"})
            self.children[index] = _start(replacement, self.outputs[index])
            self.started_at[index] = time.monotonic()
            self._report_started()
        return None

    def _should_restart(self, index: int) -> bool:
        """Check whether a process that has ended is started again."""
        crashed = self.children[index].returncode not in (0, USER_ERROR, *INTERRUPTED)
        lifetime = time.monotonic() - self.started_at[index]
        return self.processes[index].restartable and crashed and lifetime >= MIN_LIFETIME_SECONDS

    def _find_suspended(self) -> list[int]:
        """Return the indices of the processes that have been suspended for longer than `max_suspended_seconds`."""
        now = time.monotonic()
        if now - self.last_suspension_poll < SUSPENSION_POLL_SECONDS or self.max_suspended_seconds == math.inf:
            return []
        self.last_suspension_poll = now
        for child in self.children:
            if _is_suspended(child):
                self.suspended_since.setdefault(child.pid, now)
            else:
                self.suspended_since.pop(child.pid, None)
        since = [self.suspended_since.get(child.pid, now) for child in self.children]
        return [index for index, start in enumerate(since) if now - start > self.max_suspended_seconds]

    def _find_cause(self) -> str:
        """Return why the chief failed. A process that is suspended or was killed is the most likely cause."""
        for process, child in zip(self.processes, self.children, strict=True):
            if child.poll() is None and _is_suspended(child):
                return f"{process.name} has been stopped"
        failed = [pair for pair in zip(self.processes, self.children, strict=True) if pair[1].poll()]
        killed = [pair for pair in failed if pair[1].returncode < 0]
        process, child = (killed or failed)[0]
        return f"{process.name} ended with {_describe_returncode(child.returncode)}"

    def _wait_for_stragglers(self) -> None:
        """Wait up to STRAGGLER_SECONDS for the processes that end by themselves."""
        end = time.monotonic() + STRAGGLER_SECONDS
        finishing = [child for process, child in zip(self.processes, self.children, strict=True) if not process.serves]
        while time.monotonic() < end and any(child.poll() is None for child in finishing):
            time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """End all processes at once."""
        for child in self.children:
            _kill(child)

    def _report_started(self) -> None:
        children = zip(self.processes, self.children, strict=True)
        self.on_started({process.name: child.pid for process, child in children})


def _start(process: Process, output: IO[bytes] | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        process.command,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        env={**os.environ, **process.environment},
        start_new_session=True,  # the terminal's Ctrl-C reaches this process only
    )


def _is_suspended(child: subprocess.Popen[bytes]) -> bool:
    try:
        return bool(psutil.Process(child.pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def _describe_returncode(returncode: int) -> str:
    return f"exit code {returncode}" if returncode >= 0 else f"signal {signal.Signals(-returncode).name}"


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End a child and all processes that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdin is not None:
        child.stdin.close()
