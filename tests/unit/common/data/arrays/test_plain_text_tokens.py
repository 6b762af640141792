"""Tokens of plain text, by bytes and by a tokenizer.json."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from common.data.arrays import plain_text_tokens
from common.data.arrays.plain_text_tokens import open_tokenizer
from common.errors import UserError

TEXT = "the cat saw the dog\n\nthe dog — saw the cat\r\nthe end"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a byte-level BPE, which loses nothing of a text, saved with padding, truncation and a special token."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator([TEXT] * 9, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    trained.add_special_tokens(["<end>"])
    trained.enable_padding(length=64)
    trained.enable_truncation(4)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    trained.save(str(path))
    return path


def written(directory: Path, text: str) -> Path:
    path = directory / "text.txt"
    path.write_bytes(text.encode())
    return path


def test_lines_are_tokenized_one_by_one(tokenizer: Path, tmp_path: Path) -> None:
    tokens = np.concatenate(list(open_tokenizer(str(tokenizer))(written(tmp_path, TEXT))))
    library = Tokenizer.from_file(str(tokenizer))
    assert library.decode(tokens.tolist()) == TEXT
    library.no_padding()
    library.no_truncation()
    lines = [f"{line}\n" for line in TEXT.split("\n")[:-1]] + ["the end"]
    assert tokens.tolist() == [token for line in lines for token in library.encode(line).ids]


@pytest.mark.slow
@given(
    text=st.text(st.sampled_from("ab —\n\r\u2028😀"), max_size=60), size=st.integers(1, 9), longest=st.integers(1, 20)
)
def test_tokens_do_not_depend_on_the_pieces(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: Path, text: str, size: int, longest: int
) -> None:
    """The whole file becomes tokens, however it is divided into pieces."""
    path = written(tmp_path_factory.getbasetemp(), text)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("common.data.text.utf8_files.PIECE", size)
        monkeypatch.setattr(plain_text_tokens, "MAX_LINE", longest)
        library = Tokenizer.from_file(str(tokenizer))
        for name, decode in (("bytes", lambda ids: bytes(ids).decode()), (str(tokenizer), library.decode)):
            tokens = [token for piece in open_tokenizer(name)(path) for token in piece.tolist()]
            assert decode(tokens) == text
        assert "".join(line for lines in plain_text_tokens._read_lines(path) for line in lines) == text


def test_long_lines_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.data.text.utf8_files.PIECE", 4)
    monkeypatch.setattr(plain_text_tokens, "MAX_LINE", 6)
    lines = [lines for lines in plain_text_tokens._read_lines(written(tmp_path, "abcdefghijklm\nno\n")) if lines]
    assert lines == [["abcdefgh"], ["ijklm\n"], ["no\n"]]


def test_a_word_that_a_tokenizer_does_not_have(tmp_path: Path) -> None:
    path, text = tmp_path / "tokenizer.json", written(tmp_path, "cat dog\n")
    words = Tokenizer(models.WordLevel({"cat": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(path))
    with pytest.raises(UserError) as raised:
        list(open_tokenizer(str(path))(text))
    assert str(raised.value).startswith(f"{text}: {path} cannot tokenize it: ")


def test_missing_and_damaged_tokenizers(tmp_path: Path) -> None:
    remedy = "use bytes or the path of a tokenizer.json"
    for name, expected in (
        ("byte", f"data.tokenizer: no such file: byte; {remedy}"),
        (str(tmp_path), f"data.tokenizer: not a file: {tmp_path}; {remedy}"),
    ):
        with pytest.raises(UserError) as raised:
            open_tokenizer(name)
        assert str(raised.value) == expected
    path = tmp_path / "tokenizer.json"
    for content in ("{", '{"version": "1.0"}', "[]"):
        path.write_text(content)
        with pytest.raises(UserError) as raised:
            open_tokenizer(str(path))
        assert str(raised.value).startswith(f"data.tokenizer: {path} is not a tokenizer.json: ")
        assert str(raised.value).endswith("; save it again") and "\n" not in str(raised.value)
