"""A command and its descendants, which are suspended, resumed, measured and ended together."""

import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

INACTIVE_STATES = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
POLL_SECONDS = 0.001


class ProcessTree:
    """A running command and its descendants. A Ctrl-C on the terminal does not reach them.

    Attributes:
        root: the process of the command.
        suspended: the processes that the last call of `suspend` suspended.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, cores: int | None = None
    ) -> None:
        """Start a command.

        Args:
            command: The command.
            environment: Variables to add to the environment.
            log: The file that the output is appended to.
            cores: The number of cores that the processes are bound to, if the system can bind them; None for all.
        """
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self.root = psutil.Process(self._popen.pid)
        if cores is not None and hasattr(self.root, "cpu_affinity"):
            self.root.cpu_affinity(
                self.root.cpu_affinity()[:cores]
            )  # inherited by the processes that the command starts
        self.suspended: list[psutil.Process] = []
        self._peaks: dict[psutil.Process, int] = {}

    @property
    def exit_code(self) -> int | None:
        """Return the exit code of the command; None while it runs or is suspended."""
        return self._popen.poll()

    def suspend(self) -> None:
        """Suspend all processes, and wait until they are suspended."""
        self.suspended = suspend_trees([self.root])

    def resume(self) -> None:
        """Resume all processes, descendants first, so that the command never sees a suspended descendant."""
        for process in reversed(self.suspended):
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def peak_memory(self) -> int:
        """Return the sum of the peak resident memory of all processes so far, in bytes.

        Memory that processes share counts for each of them.
        """
        for process in list_descendants([self.root]):
            with suppress(psutil.NoSuchProcess, OSError):
                self._peaks[process] = max(_read_peak_memory(process), self._peaks.get(process, 0))
        return sum(self._peaks.values())

    def finish(self, seconds: float) -> None:
        """Ask the command to end, and wait at most this many seconds until it ends."""
        self.resume()
        self._popen.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(seconds)


def list_descendants(roots: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return these processes and their descendants, parents before their children."""
    processes: list[psutil.Process] = []
    for root in roots:
        with suppress(psutil.NoSuchProcess):
            processes += [root, *root.children(recursive=True)]
    return list(dict.fromkeys(processes))


def suspend_trees(roots: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Suspend processes and their descendants, also descendants that start meanwhile. Return all of them."""
    suspended: dict[psutil.Process, None] = {}
    while running := [process for process in list_descendants(roots) if process not in suspended]:
        for process in running:
            suspended[process] = None
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        while any(_is_active(process) for process in running):
            time.sleep(POLL_SECONDS)
    return list(suspended)


def _is_active(process: psutil.Process) -> bool:
    try:
        return process.status() not in INACTIVE_STATES
    except psutil.NoSuchProcess:
        return False


def _read_peak_memory(process: psutil.Process) -> int:
    """Return VmHWM of Linux in bytes; on other systems the memory that is resident now."""
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        return int(process.memory_info().rss)
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines.get("VmHWM", "0").split()[0]) * 1024  # a zombie has no VmHWM
