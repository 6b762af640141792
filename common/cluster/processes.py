"""What the processes of a run have in common: how they are started, and how they end, at the latest with their parent.

A child's standard input is a pipe that its parent never writes to: it closes when the parent ends, however it ends.
"""

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Variables of a run's processes.
IS_REPLACEMENT = "LOCKSTEP_RETURNED"  # set where a process replaces one that crashed while the run continued
STOP_PORT = "LOCKSTEP_STOP_PORT"  # where the chief listens for the stops of other ranks; any free port where not set


def die_with_parent() -> None:
    """In a child that `supervise` started: end it, and all that it started, as soon as the parent has ended."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Around the import of a framework: without garbage collection, then and later, of what is imported.

    The collector would search all of that again and again: a sixth of the CPU time, and a second when the process ends.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def exit_if_interrupted(exit_code: int) -> int:
    """End an interrupted process at once; returns where it was not interrupted.

    An ordinary end takes a second or more, in which another signal, as torchrun sends it, would change the exit code.
    """
    if exit_code > 128:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
    return exit_code
