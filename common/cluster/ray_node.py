"""An actor on a node of a Ray cluster: it starts the command that a user would start there, which ends with it."""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO

import ray

from common.errors import USER_ERROR
from common.run_module import module_command

Said = tuple[bool, str]  # whether it is of standard error, and a line


class NodeActor:
    """Runs the command of one node. `stop` is called while `run` runs, each in a thread."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self.child: subprocess.Popen[str] | None = None

    def address(self) -> str:
        """Where the other nodes reach this one."""
        return str(ray.util.get_node_ip_address())

    def run(
        self, module: str, arguments: Sequence[str], directory: str | None, environment: Mapping[str, str]
    ) -> Iterator[Said | int]:
        """Run a module to its end. Yields the lines that it prints, and at last its exit code.

        directory: to run it in; None for the actor's own. environment: added to the actor's.
        """
        if directory is not None and not Path(directory).is_dir():
            yield True, f"error: {directory}: no such directory on this node; start the command in one that all have\n"
            yield USER_ERROR
            return
        # Ray allows an actor one thread for each CPU that it asked for; Lockstep divides the cores among its processes.
        inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        self.child = subprocess.Popen(
            module_command("common.cluster.child_command", module, *arguments),
            cwd=directory,
            env={**inherited, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        if self.signum is not None:
            self.stop(self.signum)
        yield from _lines_of(self.child)
        code = self.child.wait()
        yield code if code >= 0 else 128 - code

    def stop(self, signum: int) -> None:
        """Send the command a signal, also where it is yet to start."""
        self.signum = signum
        if self.child is not None:
            self.child.send_signal(signum)


def _lines_of(child: "subprocess.Popen[str]") -> Iterator[Said]:
    """What a process prints, until it closes both streams."""
    lines: SimpleQueue[Said | None] = SimpleQueue()

    def read(stream: IO[str], is_error: bool) -> None:
        try:
            for line in stream:
                lines.put((is_error, line))
        finally:
            lines.put(None)

    assert child.stdout is not None and child.stderr is not None
    for stream in (child.stdout, child.stderr):
        Thread(target=read, args=(stream, stream is child.stderr), daemon=True).start()
    for _ in range(2):
        while (line := lines.get()) is not None:
            yield line
