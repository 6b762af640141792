"""Standard output and error that may go away: a terminal that is closed, a pipe whose reader ends."""

import errno
import io
import sys
from typing import Any

GONE = (errno.EPIPE, errno.EIO)


class _Output(io.FileIO):
    """What is written after the reader has gone is lost."""

    def write(self, content: Any, /) -> int:
        try:
            return super().write(content)
        except OSError as error:
            if error.errno not in GONE:
                raise
            return memoryview(content).nbytes


def survive_closed_output() -> None:
    """From now on it is no error if nobody reads standard output or error any more."""
    for name in ("stdout", "stderr"):
        old = getattr(sys, name)
        if type(old) is not io.TextIOWrapper or isinstance(getattr(old.buffer, "raw", None), _Output):
            continue  # of a test, or done before
        old.flush()
        new = io.BufferedWriter(_Output(old.fileno(), "wb", closefd=False))
        options = {"line_buffering": old.line_buffering, "write_through": old.write_through}
        setattr(sys, name, io.TextIOWrapper(new, old.encoding, old.errors, None, **options))
