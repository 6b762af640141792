import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer, Tokenizer

from common.data.text import tokenizer
from common.data.text.tokenizer import SPECIAL_TOKENS, copy_tokenizer, load_tokenizer, save_trained, train_wordpiece
from common.errors import UserError

TEXTS = ["The dog saw the cat.", "Anna did not see any dogs.", "Über-café 猫, naïve?"] * 2
PAIR = ("The DOG saw, naïvely", "any cats?")


def vocabulary(tokenizer: Tokenizer) -> list[str]:
    """Tokens in the order of their ids."""
    tokens = tokenizer.get_vocab()
    return sorted(tokens, key=tokens.__getitem__)


@pytest.mark.slow
@settings(max_examples=30)
@given(texts=st.lists(st.text(max_size=30), max_size=30), limit=st.integers(100, 160))
def test_the_vocabulary_is_bounded_and_a_function_of_the_texts(texts: list[str], limit: int) -> None:
    first = vocabulary(train_wordpiece(texts, limit))
    assert first == vocabulary(train_wordpiece(texts, limit))
    assert len(first) <= limit
    assert first[:5] == list(SPECIAL_TOKENS.values())


@pytest.mark.slow
@settings(max_examples=100)
@given(texts=st.lists(st.text(max_size=30), max_size=10), chunk=st.integers(1, 4))
def test_characters_are_counted_as_in_the_normalized_texts(texts: list[str], chunk: int) -> None:
    normalize = BertWordPieceTokenizer(lowercase=True).normalize
    expected = Counter(c for text in texts for c in normalize(text) if not c.isspace())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "CHUNK", chunk)
        assert tokenizer._count_characters(normalize, texts) == expected


def test_more_characters_than_the_vocabulary_holds() -> None:
    texts = ["猫 dog", *(chr(0x4E00 + i) for i in range(1000))] * 2 + ["猫 dog"]
    tokenizer = train_wordpiece(texts, 100)
    assert tokenizer.get_vocab_size() <= 100
    assert "[UNK]" not in tokenizer.encode("dog 猫").tokens, "frequent characters are in the vocabulary"


def test_pairs_are_encoded_as_bert_does() -> None:
    encoding = train_wordpiece(TEXTS, 200).encode("the dog", "a cat")
    assert [token for token in encoding.tokens if token in SPECIAL_TOKENS.values()] == ["[CLS]", "[SEP]", "[SEP]"]
    end = encoding.tokens.index("[SEP]") + 1
    assert encoding.type_ids == [0] * end + [1] * (len(encoding.ids) - end)


@pytest.mark.parametrize("how", ["trained", "only vocab.txt", "vocab.txt and settings", "copied", "copied vocab.txt"])
def test_a_tokenizer_survives_its_directory(tmp_path: Path, how: str) -> None:
    trained = train_wordpiece(TEXTS, 200)
    save_trained(trained, tmp_path)
    if "vocab.txt" in how:
        (tmp_path / "tokenizer.json").unlink()
    if how == "only vocab.txt":
        (tmp_path / "tokenizer_config.json").unlink()
    directory = tmp_path
    if "copied" in how:
        directory = tmp_path / "copy"
        directory.mkdir()
        copy_tokenizer(tmp_path, directory)
        assert (directory / "tokenizer.json").exists()
    loaded = load_tokenizer(directory)
    assert vocabulary(loaded) == vocabulary(trained)
    assert loaded.encode(*PAIR).ids == trained.encode(*PAIR).ids


def test_a_cased_vocabulary_keeps_its_case(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS.values(), "Dog", "dog"]) + "\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    assert load_tokenizer(tmp_path).encode("Dog dog").tokens == ["[CLS]", "Dog", "dog", "[SEP]"]
    (tmp_path / "tokenizer_config.json").unlink()
    assert load_tokenizer(tmp_path).encode("Dog dog").tokens == ["[CLS]", "dog", "dog", "[SEP]"]


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({}, ["cafe", "[UNK]"]),
        ({"strip_accents": False}, ["café", "[UNK]"]),
        ({"do_lower_case": False, "strip_accents": True}, ["Cafe", "[UNK]"]),
        ({"tokenize_chinese_chars": False}, ["cafe", "猫猫"]),
        ({"unk_token": {"content": "[MASK]"}}, ["cafe", "[MASK]"]),
    ],
)
def test_settings_beside_a_vocabulary_are_used(tmp_path: Path, settings: dict[str, object], tokens: list[str]) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS.values(), "cafe", "café", "Cafe", "猫猫"]) + "\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    encoded = load_tokenizer(tmp_path).encode("Café 猫猫", add_special_tokens=False).tokens
    assert [*dict.fromkeys(encoded)] == tokens


@pytest.mark.parametrize(
    ("key", "value"),
    [("do_basic_tokenize", False), ("never_split", ["dog"]), ("tokenizer_class", "BertJapaneseTokenizer")],
)
def test_settings_that_are_not_supported_are_named(tmp_path: Path, key: str, value: object) -> None:
    (tmp_path / "vocab.txt").write_text("[UNK]\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({key: value}))
    with pytest.raises(UserError, match=rf"^model\.checkpoint: .*tokenizer_config\.json has {key}=.*; add the"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b'{"version": "1.0", "model": {"type": "Word'),
        ("tokenizer.json", b"\xff"),
        ("tokenizer.json", b"[" * 100_000),
        ("tokenizer_config.json", b"{"),
        ("tokenizer_config.json", b"[]"),
    ],
)
def test_a_damaged_tokenizer_is_refused_in_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / "vocab.txt").write_text("[UNK]\n")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(
        UserError, match=r"^model\.checkpoint: the tokenizer in .* cannot be read \(.*download it again$"
    ):
        load_tokenizer(tmp_path)


def test_a_word_of_300_000_letters_does_not_delay_the_training() -> None:
    """The library trains on such a word for some minutes, and the tokenizer never uses what it learns."""
    texts = ["a good movie now", "天地玄黄" * 500]
    assert train_wordpiece([*texts, "na" * 150_000], 200).get_vocab() == train_wordpiece(texts, 200).get_vocab()


def test_a_directory_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^model.checkpoint: .* has neither tokenizer.json nor vocab.txt; add"):
        load_tokenizer(tmp_path)


@pytest.mark.slow
def test_transformers_loads_what_was_saved(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    trained = train_wordpiece(TEXTS, 200)
    save_trained(trained, tmp_path)
    encoding = trained.encode(*PAIR)
    loaded = AutoTokenizer.from_pretrained(tmp_path)(*PAIR)
    assert (loaded["input_ids"], loaded["token_type_ids"]) == (encoding.ids, encoding.type_ids)
