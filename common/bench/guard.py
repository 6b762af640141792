"""Ends what a benchmark started, however the benchmark ends, even by SIGKILL.

It is a process of its own that reads process ids from a pipe. When the pipe closes it ends these processes and all that
they started. Processes that are stopped could not see themselves that their parent has ended.
"""

import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType

import psutil

from common.bench.process_tree import stop_all
from common.run_module import module_command


class Guard:
    """The benchmark's end of the pipe. Leaving the context ends all processes, and waits until they have ended."""

    def __enter__(self) -> "Guard":
        command = module_command("common.bench.guard")
        self._popen = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._watched: set[psutil.Process] = set()
        return self

    def watch(self, processes: Iterable[psutil.Process]) -> None:
        """Have these processes and all that they started ended at the end."""
        assert self._popen.stdin is not None
        new = set(processes) - self._watched
        self._watched |= new
        self._popen.stdin.write("".join(f"{process.pid}\n" for process in new).encode())
        self._popen.stdin.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        self._popen.wait()


def main() -> None:
    """Read process ids until the pipe closes, then end them."""
    roots = []
    for line in sys.stdin:
        with suppress(psutil.NoSuchProcess):
            roots.append(psutil.Process(int(line)))
    for process in stop_all(roots):  # so that none of them starts another meanwhile
        with suppress(psutil.NoSuchProcess):
            process.kill()


if __name__ == "__main__":
    main()
