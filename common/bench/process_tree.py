"""A command with all processes below it: stopped, continued, measured and ended together."""

import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

RESTING = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
POLL_SECONDS = 0.001


class ProcessTree:
    """A running command. Its output goes to `log`; a terminal's Ctrl-C does not reach it.

    cores: to how many its processes are bound, where the system can do that; None: to none in particular.
    stopped: the processes that the last `stop` stopped.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, cores: int | None = None
    ) -> None:
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
            self.root.cpu_affinity(self.root.cpu_affinity()[:cores])  # before it has started others
        self.stopped: list[psutil.Process] = []
        self._peaks: dict[psutil.Process, int] = {}

    @property
    def exit_code(self) -> int | None:
        """Of the command; None while it runs or is stopped."""
        return self._popen.poll()

    def stop(self) -> None:
        """Stop all processes. Returns once they have stopped."""
        self.stopped = stop_all([self.root])

    def resume(self) -> None:
        """Continue all processes; the command itself is the last, so that it sees none of the others stopped."""
        for process in reversed(self.stopped):
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def peak_memory(self) -> int:
        """Bytes: the peak resident memory of each process so far, summed. Memory that they share counts for each."""
        for process in below([self.root]):
            with suppress(psutil.NoSuchProcess, OSError):
                self._peaks[process] = max(_peak(process), self._peaks.get(process, 0))
        return sum(self._peaks.values())

    def finish(self, seconds: float) -> None:
        """Ask the command to end, and wait so long for it."""
        self.resume()
        self._popen.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(seconds)


def below(roots: Iterable[psutil.Process]) -> list[psutil.Process]:
    """These processes and all that they started, parents before their children."""
    found: list[psutil.Process] = []
    for root in roots:
        with suppress(psutil.NoSuchProcess):
            found += [root, *root.children(recursive=True)]
    return list(dict.fromkeys(found))


def stop_all(roots: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Stop these processes and all that they started, whatever they start meanwhile. Returns those that it stopped."""
    stopped: dict[psutil.Process, None] = {}
    while fresh := [process for process in below(roots) if process not in stopped]:
        for process in fresh:
            stopped[process] = None
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        while any(_is_active(process) for process in fresh):
            time.sleep(POLL_SECONDS)
    return list(stopped)


def _is_active(process: psutil.Process) -> bool:
    try:
        return process.status() not in RESTING
    except psutil.NoSuchProcess:
        return False


def _peak(process: psutil.Process) -> int:
    """Linux's VmHWM; elsewhere what is resident now."""
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        return int(process.memory_info().rss)
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines.get("VmHWM", "0").split()[0]) * 1024  # a zombie has none
