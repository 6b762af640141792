"""A process that kills the processes of a benchmark when the benchmark ends, even if SIGKILL ends it.

The guard reads process ids from a pipe. When the pipe closes, it kills these processes and all their descendants. A
waiting contestant is suspended (SIGSTOP) while another contestant runs. A suspended process does not notice that its
parent has ended, so the guard must kill it.
"""

import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType

import psutil

from common.bench.process_tree import suspend_trees
from common.run_module import module_command


class Guard:
    """The benchmark's end of the pipe. Leaving the context kills the watched processes and waits for their end."""

    def __enter__(self) -> "Guard":
        command = module_command("common.bench.guard")
        self._popen = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        assert self._popen.stdin is not None
        self._pipe = self._popen.stdin
        self._watched: set[psutil.Process] = set()
        return self

    def watch(self, processes: Iterable[psutil.Process]) -> None:
        """Kill these processes and their descendants when the benchmark ends."""
        unwatched = set(processes) - self._watched
        self._watched |= unwatched
        self._pipe.write("".join(f"{process.pid}\n" for process in unwatched).encode())
        self._pipe.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._popen.wait()


def main() -> None:
    """Read process ids until the pipe closes, then kill the processes and their descendants."""
    roots = []
    for line in sys.stdin:
        with suppress(psutil.NoSuchProcess):
            roots.append(psutil.Process(int(line)))
    for process in suspend_trees(roots):  # suspended first, so that none starts another process
        with suppress(psutil.NoSuchProcess):
            process.kill()


if __name__ == "__main__":
    main()
