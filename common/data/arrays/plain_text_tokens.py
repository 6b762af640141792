"""Plain text as tokens, read from start to end without holding it."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from common.data.text.utf8_files import read_pieces
from common.errors import UserError, describe_error

BYTES = "bytes"  # the tokenizer whose tokens are the bytes of UTF-8
LONGEST = 1 << 20  # characters of a line that are tokenized together

TokenReader = Callable[[Path], Iterator[np.ndarray]]


def open_tokenizer(name: str) -> TokenReader:
    """What yields the tokens of a file, integers [n] a piece. Raises UserError.

    name: `bytes`, or the path of a tokenizer.json. It tokenizes each line by itself, with its newline, and adds no
    special tokens.
    """
    if name == BYTES:
        return _bytes
    from tokenizers import Tokenizer

    path = find_tokenizer(name)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library's own class of all its errors
        raise UserError(
            f"data.tokenizer: {path} is no tokenizer.json: {describe_error(error)}; save it again"
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def tokens(text: Path) -> Iterator[np.ndarray]:
        for lines in _lines(text):
            try:
                encodings = tokenizer.encode_batch_fast(lines, add_special_tokens=False)
            except Exception as error:  # such as a word that is not in a vocabulary without a token for others
                raise UserError(
                    f"{text}: {path} cannot tokenize it: {describe_error(error)}; choose another"
                ) from error
            for encoding in encodings:
                yield np.array(encoding.ids, np.int32)

    return tokens


def find_tokenizer(name: str) -> Path:
    """The file of a tokenizer. Raises UserError where there is none."""
    path = Path(name).expanduser()
    if not path.is_file():
        what = "not a file" if path.exists() else "no such file"
        raise UserError(f"data.tokenizer: {what}: {name}; give {BYTES} or the path of a tokenizer.json")
    return path


def _bytes(path: Path) -> Iterator[np.ndarray]:
    return (np.frombuffer(piece.encode(), np.uint8) for piece in read_pieces(path))


def _lines(path: Path) -> Iterator[list[str]]:
    """The lines of a file with their newlines, some at a time. One that is too long is cut."""
    rest = ""
    for piece in read_pieces(path):
        text = rest + piece
        end = text.rfind("\n") + 1
        if not end and len(text) > LONGEST:
            end = len(text)
        yield list(io.StringIO(text[:end], newline="\n"))
        rest = text[end:]
    yield [rest] if rest else []
