"""Start and end of the processes of a run: no process outlives its parent.

A child's standard input is a pipe that its parent never writes to. It closes when the parent ends, even after SIGKILL.
"""

import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Environment variables that a command sets for the processes of its run.
IS_REPLACEMENT = "LOCKSTEP_RETURNED"  # set if a process replaces one that crashed while the run continued
STOP_PORT = "LOCKSTEP_STOP_PORT"  # the port on which the chief listens for stops of other ranks; any free port if unset
TEMPORARY_DIRECTORY = "LOCKSTEP_TEMPORARY"  # a directory that the command removes when the processes have ended
RUN_TOKEN = "LOCKSTEP_TOKEN"  # the token of the run, a secret that its processes show each other

log = logging.getLogger("lockstep")


def read_run_token() -> str:
    """Return the token that this process requires from the others. Warn if there is none: anyone may then join."""
    token = os.environ.get(RUN_TOKEN, "")
    if not token:
        log.warning(
            "%s is not set, so any process that can reach this one may join the run; set it to the same secret for "
            "every task",
            RUN_TOKEN,
        )
    return token


@contextmanager
def open_temporary_directory() -> Iterator[tuple[Path, dict[str, str]]]:
    """Make a directory for the processes that the `with` block starts, and remove the directory afterwards.

    Yield the directory and an environment variable for these processes. If this process is killed, processes with the
    variable remove the directory.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-", ignore_cleanup_errors=True) as directory:
        yield Path(directory), {TEMPORARY_DIRECTORY: directory}


def die_with_parent() -> None:
    """End this process, and all that it started, as soon as its parent has ended. Remove its temporary directory, too.

    A parent that was killed cannot remove the directory that it made for its processes. The parent must have started
    this process in a session of its own, with a pipe as standard input, as `supervise` does.
    """

    def watch_standard_input() -> None:
        while os.read(0, 1):
            pass
        if directory := os.environ.get(TEMPORARY_DIRECTORY):
            shutil.rmtree(directory, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch_standard_input, daemon=True).start()


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Import a framework in the body without garbage collection, and exempt what is imported from later collections.

    The collector would search all imported objects again and again: a sixth of the CPU time of a short run, and another
    second when the process ends.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def exit_if_interrupted(exit_code: int) -> int:
    """End this process at once if a signal has interrupted it. Otherwise return its exit code.

    An ordinary end takes a second or more. A second signal in that time, as torchrun sends it, would change the exit
    code.
    """
    if exit_code > 128:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)
    return exit_code
