"""Start, watch and end the processes of a run on this machine. Nothing outlives its parent, however that ends."""

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

from common.cluster.processes import FAILURE, RETURNED, USER_ERROR, Stop

log = logging.getLogger("lockstep")

GRACE_SECONDS = 9.0  # between a stop request and SIGKILL
STRAGGLER_SECONDS = 3.0  # between the end of one process and SIGKILL for the others
POLL_SECONDS = 0.05
STALL_POLL_SECONDS = 1.0
RETURN_SECONDS = 10.0  # a process that falls sooner after its start does not come back


@dataclass(frozen=True)
class Process:
    """A process to start; `environment` is added to this process's own.

    serves: it never ends by itself. returns: the run goes on without it, and it is started again when it falls.
    """

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    serves: bool = False
    returns: bool = False


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
    started: Callable[[dict[str, int]], None] = lambda pids: None,
    patience: float = math.inf,
) -> Outcome:
    """Run the processes of a run to their end; the first is the chief, whose end ends the others.

    The chief has this process's output where it `speaks`, the others write to `log_path`. A stop signal goes to the
    chief alone: it leaves at a step of its choosing and the others, who cannot go on without it, are ended after it.
    lost: what is gone elsewhere, without which they cannot go on either. started: is told their process ids. patience:
    the seconds after which one that stands still, as SIGSTOP makes it, counts as fallen.
    """
    stop = Stop()
    with log_path.open("ab") as output:
        group = _Group(processes, None if chief_speaks else output, output, started, patience)
        try:
            group.start()
            return group.watch(stop, lost)
        finally:
            group.end()
            stop.restore()


class _Group:
    """The processes of a run, under way."""

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
        self.still_since: dict[int, float] = {}  # by process id
        self.looked = 0.0

    def start(self) -> None:
        for process, output in zip(self.processes, self.outputs, strict=True):
            self.children.append(_start(process, output))
            self.births.append(time.monotonic())
        self._tell()

    def watch(self, stop: Stop, lost: Callable[[], str | None]) -> Outcome:
        """Until the chief ends, or what it cannot go on without."""
        deadline, problem = math.inf, None
        while time.monotonic() < deadline:
            if self.children[0].poll() is not None and (stop.signum is not None or not self._may_return(0)):
                break
            time.sleep(POLL_SECONDS)
            if stop.signum is not None and deadline == math.inf:
                self.children[0].send_signal(stop.signum)
                deadline = time.monotonic() + GRACE_SECONDS
            if stop.signum is None and problem is None and (problem := self._fallen() or lost()):
                deadline = time.monotonic() + STRAGGLER_SECONDS
        chief = self.children[0]
        if chief.poll() == 0:
            problem = None  # the chief has all it needed: whoever fell had no more to do
        if stop.signum is not None and chief.poll() != 0:
            return Outcome(128 + stop.signum, f"stopped by {signal.Signals(stop.signum).name}")
        if problem is None and chief.returncode:
            problem = self._cause()
        if problem is None:
            self._finish()
        return Outcome(chief.returncode if chief.returncode == USER_ERROR else FAILURE if problem else 0, problem)

    def _fallen(self) -> str | None:
        """Which process has fallen or stands still, but for those that come back."""
        still = self._still()
        for index, (process, child) in enumerate(zip(self.processes, self.children, strict=True)):
            if index in still:
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
            again = replace(process, environment={**process.environment, RETURNED: "1"})
            self.children[index], self.births[index] = _start(again, self.outputs[index]), time.monotonic()
            self._tell()
        return None

    def _may_return(self, index: int) -> bool:
        """Whether a process that has ended is to be started again."""
        fell = self.children[index].returncode not in (0, USER_ERROR)
        return self.processes[index].returns and fell and time.monotonic() - self.births[index] >= RETURN_SECONDS

    def _still(self) -> list[int]:
        """Which processes have been stopped for longer than `patience`."""
        now = time.monotonic()
        if now - self.looked < STALL_POLL_SECONDS or self.patience == math.inf:
            return []
        self.looked = now
        for child in self.children:
            if _is_stopped(child):
                self.still_since.setdefault(child.pid, now)
            else:
                self.still_since.pop(child.pid, None)
        since = [self.still_since.get(child.pid, now) for child in self.children]
        return [index for index, start in enumerate(since) if now - start > self.patience]

    def _cause(self) -> str:
        """Why the chief ended badly: one that stands still or was killed is more likely the cause than what ended."""
        for process, child in zip(self.processes, self.children, strict=True):
            if child.poll() is None and _is_stopped(child):
                return f"{process.name} has been stopped"
        fallen = [pair for pair in zip(self.processes, self.children, strict=True) if pair[1].poll()]
        killed = [pair for pair in fallen if pair[1].returncode < 0]
        process, child = (killed or fallen)[0]
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

    def _tell(self) -> None:
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
