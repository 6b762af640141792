"""The actor, a process of Ray on a node of its cluster, which starts the command that a user would start there."""

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO, NamedTuple

import ray

from common.cluster.engines.local import PROCESS_NUMBERS
from common.errors import USER_ERROR
from common.run_module import module_command


class OutputLine(NamedTuple):
    """A line that a command has printed, to standard error if `is_error`, else to standard output."""

    is_error: bool
    text: str


class NodeActor:
    """Runs the command of one node. Ray calls `run` and `stop` in two threads, so that `stop` can interrupt `run`."""

    def __init__(self) -> None:
        self.signum: int | None = None  # the signal to send to the command
        self.child: subprocess.Popen[str] | None = None

    def address(self) -> str:
        """Return the address at which the other nodes reach this node."""
        return str(ray.util.get_node_ip_address())

    def run(
        self, module: str, arguments: Sequence[str], directory: str | None, environment: Mapping[str, str]
    ) -> Iterator[OutputLine | int]:
        """Run a module to its end. Yield the lines that it prints, and at last its exit code.

        Args:
            module: the module, as `python -m` takes it.
            arguments: the arguments of the command.
            directory: the working directory; None for the actor's.
            environment: variables that are added to the actor's environment.
        """
        if directory is not None and not Path(directory).is_dir():
            error = f"error: {directory}: no such directory on this node; start in a directory that all nodes have\n"
            yield OutputLine(True, error)
            yield USER_ERROR
            return
        # OMP_NUM_THREADS is Ray's limit, one thread for each reserved CPU; Lockstep divides the cores among its
        # processes. PROCESS_NUMBERS come from a scheduler that has started Ray, and number nodes, not commands.
        dropped = ("OMP_NUM_THREADS", *PROCESS_NUMBERS)
        inherited = {name: value for name, value in os.environ.items() if name not in dropped}
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
        yield from _iterate_output(self.child)
        code = self.child.wait()
        yield code if code >= 0 else 128 - code  # -code is the signal that has ended the command

    def stop(self, signum: int) -> None:
        """Send the command a signal. If it has not started yet, it gets the signal then."""
        self.signum = signum
        if self.child is not None:
            self.child.send_signal(signum)


def _iterate_output(child: "subprocess.Popen[str]") -> Iterator[OutputLine]:
    """Yield what a process prints, until it closes both streams."""
    lines: SimpleQueue[OutputLine | None] = SimpleQueue()

    def read(stream: IO[str], is_error: bool) -> None:
        try:
            for line in stream:
                lines.put(OutputLine(is_error, line))
        finally:
            lines.put(None)

    assert child.stdout is not None and child.stderr is not None
    for stream in (child.stdout, child.stderr):
        Thread(target=read, args=(stream, stream is child.stderr), daemon=True).start()
    for _ in range(2):  # each of the two threads ends with None
        while (line := lines.get()) is not None:
            yield line
