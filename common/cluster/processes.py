"""What a process of a run has in common with the others: how it is started, and that it ends with its parent.

A child's standard input is a pipe that its parent never writes to: it closes when the parent ends, however it ends.
"""

import os
import signal
import sys
import threading

# Variables of a run's processes.
RETURNED = "LOCKSTEP_RETURNED"  # set where a process replaces one that crashed while the run continued
STOP_PORT = "LOCKSTEP_STOP_PORT"  # where the chief listens for the stops of other ranks; any free port where not set


def die_with_parent() -> None:
    """In a child that `supervise` started: end it, and all that it started, as soon as the parent has ended."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module with this interpreter."""
    return [sys.executable, "-m", module, *arguments]
