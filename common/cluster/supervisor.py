"""Start, watch and end the processes of a run on this machine. No process outlives its parent, however that ends."""

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

GRACE_SECONDS = 9.0  # between a stop request and SIGKILL
STRAGGLER_SECONDS = 3.0  # between the end of one process and SIGKILL for the others
POLL_SECONDS = 0.05
STALL_POLL_SECONDS = 1.0
MIN_LIFETIME_SECONDS = 10.0  # a process that crashes sooner after its start is not started again
INTERRUPTED = {128 + signum: signum for signum in SIGNALS} | {-signum: signum for signum in SIGNALS}  # exit codes


@dataclass(frozen=True)
class Process:
    """A process to start; `environment` is added to this process's own.

    serves: it never ends by itself. restartable: the run continues without it, and it is started again if it crashes.
    """

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    serves: bool = False
    restartable: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a group of processes ended: the exit code of the run, and which process failed, if one did."""

    exit_code: int
    problem: str | None


@dataclass(frozen=True)
class Peers:
    """What is known of the run's other hosts: the error once one was lost, the signal that stopped one's command."""

    lost: Callable[[], str | None] = lambda: None
    stopped: Callable[[], int | None] = lambda: None


def supervise(
    processes: list[Process],
    log_path: Path,
    chief_inherits_stdio: bool = True,
    peers: Peers | None = None,
    started: Callable[[dict[str, int]], None] = lambda pids: None,
    patience: float = math.inf,
) -> Outcome:
    """Run the processes of a run to their end; the end of the first, the chief, ends the others.

    The chief has this process's output where it `speaks`, the others write to `log_path`. A stop signal is passed to
    the first one, which agrees with all others on the step to stop after. started: is called with the process ids.
    patience: a process that has been stopped, as SIGSTOP does it, for so many seconds counts as crashed.
    """
    stop = Stop()
    with log_path.open("ab") as output:
        group = _Group(processes, None if chief_inherits_stdio else output, output, started, patience)
        try:
            group.start()
            return group.watch(stop, peers or Peers())
        finally:
            group.end()
            stop.restore()


class _Group:
    """The running processes of a run."""

    def __init__(
        self,
        processes: list[Process],
        chief_output: IO[bytes] | None,
        output: IO[bytes],
        started: Callable[[dict[str, int]], None],
        patience: float,
    ) -> None:
        self.processes, self.started, self.patience = processes, started, patience
        self.outputs = [chief_output, *[output] * (len(processes) - 1)]
        self.children: list[subprocess.Popen[bytes]] = []
        self.births: list[float] = []
        self.stopped_since: dict[int, float] = {}  # by process id
        self.looked = 0.0

    def start(self) -> None:
        for process, output in zip(self.processes, self.outputs, strict=True):
            self.children.append(_start(process, output))
            self.births.append(time.monotonic())
        self._report_started()

    def watch(self, stop: Stop, peers: Peers) -> Outcome:
        """Until the chief ends, or what it cannot continue without."""
        deadline, problem = math.inf, None
        signum: int | None = None
        while time.monotonic() < deadline:
            if self.children[0].poll() is not None and (signum is not None or not self._may_return(0)):
                break
            time.sleep(POLL_SECONDS)
            if signum is None:
                signum = stop.signum or peers.stopped()
                if signum is not None:
                    self.children[0].send_signal(signum)
                else:
                    signum = self._interrupted()
                if signum is not None:
                    deadline = time.monotonic() + GRACE_SECONDS
            if signum is None and problem is None and (problem := self._crashed() or peers.lost()):
                deadline = time.monotonic() + STRAGGLER_SECONDS
        return self._outcome(signum, problem)

    def _outcome(self, signum: int | None, problem: str | None) -> Outcome:
        returncode = self.children[0].poll()
        if signum is None and problem is None and returncode is not None:
            signum = INTERRUPTED.get(returncode)
        if returncode == 0:
            problem = None  # the chief had all it needed: the one that crashed had no more to do
        if signum is not None and returncode != 0:
            return Outcome(128 + signum, f"stopped by {signal.Signals(signum).name}")
        if problem is None and returncode:
            problem = self._cause()
        if problem is None:
            self._finish()
        return Outcome(returncode if returncode == USER_ERROR else FAILURE if problem else 0, problem)

    def _interrupted(self) -> int | None:
        """The signal by which a process other than the first has ended; the first one gets it too."""
        for child in self.children[1:]:
            if (signum := INTERRUPTED.get(child.poll() or 0)) is not None:
                self.children[0].send_signal(signum)
                return signum
        return None

    def _crashed(self) -> str | None:
        """Which process has crashed or is stopped, but for those that are started again."""
        stopped = self._stopped()
        for index, (process, child) in enumerate(zip(self.processes, self.children, strict=True)):
            if index in stopped:
                how = f"has been stopped for {self.patience:g} s"
                _kill(child)
            elif child.poll() and (index or self._may_return(index)):
                how = f"ended with {_how(child.returncode)}"
            else:
                continue
            if not self._may_return(index):
                return f"{process.name} {how}"
            log.warning("%s %s; starting it again", process.name, how)
            _kill(child)
            again = replace(process, environment={**process.environment, IS_REPLACEMENT: "1"})
            self.children[index], self.births[index] = _start(again, self.outputs[index]), time.monotonic()
            self._report_started()
        return None

    def _may_return(self, index: int) -> bool:
        """Whether a process that has ended is to be started again."""
        crashed = self.children[index].returncode not in (0, USER_ERROR, *INTERRUPTED)
        return (
            self.processes[index].restartable
            and crashed
            and time.monotonic() - self.births[index] >= MIN_LIFETIME_SECONDS
        )

    def _stopped(self) -> list[int]:
        """Which processes have been stopped for longer than `patience`."""
        now = time.monotonic()
        if now - self.looked < STALL_POLL_SECONDS or self.patience == math.inf:
            return []
        self.looked = now
        for child in self.children:
            if _is_stopped(child):
                self.stopped_since.setdefault(child.pid, now)
            else:
                self.stopped_since.pop(child.pid, None)
        since = [self.stopped_since.get(child.pid, now) for child in self.children]
        return [index for index, start in enumerate(since) if now - start > self.patience]

    def _cause(self) -> str:
        """Why the chief failed: one that is stopped or was killed is more likely the cause than one that ended."""
        for process, child in zip(self.processes, self.children, strict=True):
            if child.poll() is None and _is_stopped(child):
                return f"{process.name} has been stopped"
        failed = [pair for pair in zip(self.processes, self.children, strict=True) if pair[1].poll()]
        killed = [pair for pair in failed if pair[1].returncode < 0]
        process, child = (killed or failed)[0]
        return f"{process.name} ended with {_how(child.returncode)}"

    def _finish(self) -> None:
        """Let those that end by themselves do so."""
        end = time.monotonic() + STRAGGLER_SECONDS
        finishing = [child for process, child in zip(self.processes, self.children, strict=True) if not process.serves]
        while time.monotonic() < end and any(child.poll() is None for child in finishing):
            time.sleep(POLL_SECONDS)

    def end(self) -> None:
        for child in self.children:
            _kill(child)

    def _report_started(self) -> None:
        self.started({process.name: child.pid for process, child in zip(self.processes, self.children, strict=True)})


def _start(process: Process, output: IO[bytes] | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        process.command,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        env={**os.environ, **process.environment},
        start_new_session=True,  # the terminal's Ctrl-C reaches this process only
    )


def _is_stopped(child: subprocess.Popen[bytes]) -> bool:
    try:
        return bool(psutil.Process(child.pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def _how(returncode: int) -> str:
    return f"exit code {returncode}" if returncode >= 0 else f"signal {signal.Signals(-returncode).name}"


def _kill(child: subprocess.Popen[bytes]) -> None:
    """End a child and all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdin is not None:
        child.stdin.close()
