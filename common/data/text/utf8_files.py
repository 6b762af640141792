"""Text files in UTF-8, plain or compressed by gzip, read from start to end without holding them in memory."""

import codecs
import gzip
import zlib
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from common.errors import UserError

PIECE = 1 << 20  # bytes of a file that are read at once
MAX_LINE_BYTES = 64 << 20


def is_gzip(path: Path) -> bool:
    """Check whether the name of a file says that it is compressed."""
    return path.suffix.lower() == ".gz"


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number, from 1, and the text of each line.

    Raises:
        UserError: If the file cannot be read or is not UTF-8.
    """
    for number, line in enumerate(_read_blocks(path), 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            place = f"byte {error.start + 1} of the line"
            raise UserError(f"{path}:{number}: not UTF-8 at {place}; save the file as UTF-8") from None
        yield number, text


def read_line_texts(path: Path) -> Iterator[str]:
    """Yield the text of each line."""
    return (text for _, text in read_lines(path))


def read_pieces(path: Path) -> Iterator[str]:
    """Yield the text of a file in pieces that end anywhere, because some files are one long line."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        for block in _read_blocks(path, PIECE):
            yield decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        deque(read_lines(path), maxlen=0)  # reads the file again by lines, which raises an error that names the line
        raise


def _read_blocks(path: Path, size: int | None = None) -> Iterator[bytes]:
    """Yield the content of a file in blocks of `size` bytes, or in lines if `size` is None."""
    try:
        with gzip.open(path, "rb") if is_gzip(path) else path.open("rb") as file:
            read = partial(file.read, size) if size else partial(file.readline, MAX_LINE_BYTES + 1)
            for number, block in enumerate(iter(read, b"")):
                if not size and len(block) > MAX_LINE_BYTES:
                    raise UserError(f"{path}:{number + 1}: the line has more than {MAX_LINE_BYTES >> 20} MiB; split it")
                if number == 0 and b"\0" in block.partition(b"\n")[0]:
                    raise UserError(f"{path}: UTF-16, or not a text file; save it as UTF-8 (in Excel: CSV UTF-8)")
                yield block
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
