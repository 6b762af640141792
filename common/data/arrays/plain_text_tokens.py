"""Reader of the tokens of plain text. A text is never in memory as a whole."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from common.data.text.utf8_files import read_pieces
from common.errors import UserError, describe_error

BYTES = "bytes"  # the tokenizer whose tokens are the bytes of UTF-8
MAX_LINE = 1 << 20  # characters; a longer line may be cut

TokenReader = Callable[[Path], Iterator[np.ndarray]]  # yields the tokens of a file in pieces, integers [n]


def open_tokenizer(name: str) -> TokenReader:
    """Return a function that reads the tokens of a file.

    Args:
        name: `bytes`, or the path of a tokenizer.json. It tokenizes each line by itself, with its newline, and adds no
            special tokens.

    Raises:
        UserError: If the tokenizer cannot be read.
    """
    if name == BYTES:
        return _read_bytes
    from tokenizers import Tokenizer

    path = find_tokenizer(name)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises Exception itself
        raise UserError(
            f"data.tokenizer: {path} is not a tokenizer.json: {describe_error(error)}; save it again"
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def read_tokens(text: Path) -> Iterator[np.ndarray]:
        for lines in _read_lines(text):
            try:
                encodings = tokenizer.encode_batch_fast(lines, add_special_tokens=False)
            except Exception as error:  # such as an unknown word for a vocabulary without a token for such words
                raise UserError(
                    f"{text}: {path} cannot tokenize it: {describe_error(error)}; choose another"
                ) from error
            for encoding in encodings:
                yield np.array(encoding.ids, np.int32)

    return read_tokens


def find_tokenizer(name: str) -> Path:
    """Return the path of a tokenizer. Raise UserError if there is no such file."""
    path = Path(name).expanduser()
    if not path.is_file():
        problem = "not a file" if path.exists() else "no such file"
        raise UserError(f"data.tokenizer: {problem}: {name}; use {BYTES} or the path of a tokenizer.json")
    return path


def _read_bytes(path: Path) -> Iterator[np.ndarray]:
    return (np.frombuffer(piece.encode(), np.uint8) for piece in read_pieces(path))


def _read_lines(path: Path) -> Iterator[list[str]]:
    """Yield the lines of a file with their newlines, some at a time. A line of more than MAX_LINE may be cut."""
    remainder = ""
    for piece in read_pieces(path):
        text = remainder + piece
        end = text.rfind("\n") + 1
        if not end and len(text) > MAX_LINE:
            end = len(text)
        yield list(io.StringIO(text[:end], newline="\n"))
        remainder = text[end:]
    yield [remainder] if remainder else []
