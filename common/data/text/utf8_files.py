"""Text files in UTF-8, gzip or not, read from start to end without holding them. Errors name file and line."""

import codecs
import gzip
import zlib
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from common.errors import UserError

PIECE = 1 << 20  # bytes


def is_gzip(path: Path) -> bool:
    """Whether a file's name says that it is compressed."""
    return path.suffix.lower() == ".gz"


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers, from 1."""
    for number, line in enumerate(_blocks(path), 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            place = f"byte {error.start + 1} of the line"
            raise UserError(f"{path}:{number}: not UTF-8 at {place}; save the file as UTF-8") from None
        yield number, text


def read_line_texts(path: Path) -> Iterator[str]:
    """The lines of a file."""
    return (line for _, line in read_lines(path))


def read_pieces(path: Path) -> Iterator[str]:
    """A file's text in pieces that end anywhere, for files that may be one long line."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    try:
        for block in _blocks(path, PIECE):
            yield decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        deque(read_lines(path), maxlen=0)  # raises an error that names the line
        raise


def _blocks(path: Path, size: int | None = None) -> Iterator[bytes]:
    """A file's content in blocks of so many bytes, or in lines."""
    try:
        with gzip.open(path, "rb") if is_gzip(path) else open(path, "rb") as file:
            for number, block in enumerate(iter(partial(file.read, size), b"") if size else file):
                if number == 0 and b"\0" in block.partition(b"\n")[0]:
                    raise UserError(f"{path}: UTF-16, or not a text file; save it as UTF-8 (in Excel: CSV UTF-8)")
                yield block
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
