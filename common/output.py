"""Standard output and error that survive their reader: a closed terminal, or a pipe whose reader ends."""

import errno
import io
import sys
from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

READER_HAS_ENDED = (errno.EPIPE, errno.EIO)  # errors of a write to a pipe and to a terminal


class _Output(io.FileIO):
    """A file that discards everything written after its reader has ended."""

    @override
    def write(self, content: "ReadableBuffer", /) -> int:
        try:
            return super().write(content)
        except OSError as error:
            if error.errno not in READER_HAS_ENDED:
                raise
            return memoryview(content).nbytes


def survive_closed_output() -> None:
    """From now on, discard standard output and standard error once their reader has ended."""
    for name in ("stdout", "stderr"):
        old = getattr(sys, name)
        if type(old) is not io.TextIOWrapper or isinstance(getattr(old.buffer, "raw", None), _Output):
            continue  # a test has replaced the stream, or an earlier call has
        old.flush()
        new = io.BufferedWriter(_Output(old.fileno(), "wb", closefd=False))
        options = {"line_buffering": old.line_buffering, "write_through": old.write_through}
        setattr(sys, name, io.TextIOWrapper(new, old.encoding, old.errors, None, **options))
