import logging
import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from common.config import compose as configs
from common.config.data import FilesSettings
from common.config.schema import Config
from common.data.text import token_cache_builder
from common.data.text.token_cache import FORMAT, TokenCache, TokenizedSplit, open_cache
from common.models.pretrained import find_source
from tests.conftest import SMALL_MODEL, Compose, MakeSplit
from tests.unit.common.data.text.conftest import PAIRS, Text, make_corpus_config, with_corpus, with_max_length

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(["the dog", "", "a cat " * 9])
single_or_pair = st.lists(text, min_size=1, max_size=12) | st.lists(st.tuples(text, text), min_size=1, max_size=12)


def list_examples(split: TokenizedSplit) -> list[tuple[list[int], list[int]]]:
    """Return the token ids and type ids of every example, which its attention mask marks."""
    ids = np.arange(len(split))
    arrays = split.gather(ids, ids)
    masks = arrays["attention_mask"]
    assert ((arrays["input_ids"] == split.pad_id) | (masks == 1)).all()
    assert ((arrays["token_type_ids"] == 0) | (masks == 1)).all()
    assert (np.diff(masks, axis=1) <= 0).all(), "the padding is at the end"
    return [
        (arrays["input_ids"][i, : mask.sum()].tolist(), arrays["token_type_ids"][i, : mask.sum()].tolist())
        for i, mask in enumerate(masks)
    ]


@pytest.mark.slow
@settings(max_examples=30)
@given(texts=single_or_pair)
def test_round_trip(composed: Compose, tmp_path_factory: pytest.TempPathFactory, texts: list[Text]) -> None:
    """The cache has the tokens that the tokenizer gives for the text, however the text is divided into chunks."""
    with patch.object(token_cache_builder, "CHUNK", 5):
        opened = open_cache(make_corpus_config(composed, tmp_path_factory.mktemp("corpus"), texts), None)
    tokenizer = Tokenizer.from_file(str(opened.tokenizer_directory / "tokenizer.json"))
    for split in (opened.train, opened.validation):
        encodings = [tokenizer.encode(*([t] if isinstance(t, str) else t)) for t in texts]
        assert list_examples(split) == [(encoding.ids, encoding.type_ids) for encoding in encodings]
        assert split.labels.tolist() == [index % 2 for index in range(len(texts))]
    assert opened.vocabulary == tokenizer.get_vocab_size()
    assert opened.classes == ["0", "1"][: len(texts)]


@pytest.mark.slow
@settings(max_examples=30)
@given(texts=single_or_pair, max_length=st.integers(3, 30))
def test_longer_examples_are_cut(
    composed: Compose, tmp_path_factory: pytest.TempPathFactory, texts: list[Text], max_length: int
) -> None:
    config = with_max_length(make_corpus_config(composed, tmp_path_factory.mktemp("corpus"), texts), max_length)
    opened = open_cache(config, None)
    tokenizer = Tokenizer.from_file(str(opened.tokenizer_directory / "tokenizer.json"))
    tokenizer.no_truncation()
    separator = tokenizer.token_to_id("[SEP]")
    for t, (ids, type_ids) in zip(texts, list_examples(opened.train), strict=True):
        whole = tokenizer.encode(*([t] if isinstance(t, str) else t))
        assert len(ids) == min(max_length, len(whole.ids))
        for segment in set(whole.type_ids):  # [CLS] and the remaining tokens of each segment, then its [SEP]
            remaining = [token for token, kind in zip(ids, type_ids, strict=True) if kind == segment]
            complete = [token for token, kind in zip(whole.ids, whole.type_ids, strict=True) if kind == segment]
            assert remaining[:-1] == complete[: len(remaining) - 1]
            assert remaining[-1] == separator


@pytest.mark.parametrize(("lengths", "width"), [([3], 8), ([8], 8), ([9, 2], 16), ([17, 1], 20), ([20], 20)])
def test_width_is_a_multiple_of_eight_up_to_max_length(make_split: MakeSplit, lengths: list[int], width: int) -> None:
    assert make_split(lengths, max_length=20).padded_width(np.arange(len(lengths))) == width


@pytest.fixture(scope="module")
def built_config(composed: Compose, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Return a config of forty pairs, for tests that leave its cache whole."""
    return make_corpus_config(composed, tmp_path_factory.mktemp("built"), PAIRS)


@pytest.fixture
def no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every reading of a corpus fail."""

    def fail(*arguments: object) -> None:
        raise AssertionError("read_corpus is called")

    monkeypatch.setattr(token_cache_builder, "read_corpus", fail)


@pytest.fixture(scope="module")
def built(built_config: Config) -> TokenCache:
    return open_cache(built_config, None)


@pytest.mark.usefixtures("built", "no_text")
def test_a_second_start_reads_no_text(built_config: Config, built: TokenCache) -> None:
    again = open_cache(built_config, None)
    assert again.fingerprint == built.fingerprint
    assert list_examples(again.train) == list_examples(built.train)
    assert isinstance(again.train.tokens, np.memmap)
    with pytest.raises(AssertionError, match="read_corpus is called"):
        open_cache(with_max_length(built_config, 16), None)


@pytest.mark.parametrize("name", ["train.tokens.npy", "validation.offsets.npy", "tokenizer/tokenizer.json"])
@pytest.mark.parametrize("damage", ["truncated", "altered", "removed"])
def test_damage_is_reported_and_repaired(
    built_config: Config, built: TokenCache, caplog: pytest.LogCaptureFixture, name: str, damage: str
) -> None:
    path = built.directory / name
    content = path.read_bytes()
    expected = list_examples(open_cache(built_config, None).train)  # an earlier case has damaged what `built` maps
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if damage == "truncated" else content[:-1] + bytes([content[-1] ^ 1]))
    with caplog.at_level(logging.WARNING, "lockstep"):
        again = open_cache(built_config, None)
    assert [message for message in caplog.messages if name in message and "building it again" in message]
    assert again.fingerprint == built.fingerprint
    assert path.read_bytes() == content
    assert list_examples(again.train) == expected


def test_a_cache_of_an_older_format_is_built_again(
    built_config: Config, built: TokenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.data.text.token_cache.FORMAT", FORMAT - 1)
    older = open_cache(built_config, None)
    assert older.directory != built.directory
    assert list_examples(older.validation) == list_examples(built.validation)


@pytest.mark.slow
def test_the_key_depends_on_values_that_change_the_tokens(pairs_config: Config, composed: Compose) -> None:
    """Other values lead to the same cache."""
    assert isinstance(pairs_config.data, FilesSettings)
    path = pairs_config.data.train

    def open_directory(*overrides: str) -> Path:
        config = configs.parse_config(
            composed("data=files", "data.train=x", "data.validation=x", *SMALL_MODEL, *overrides)
        )
        return open_cache(replace(with_corpus(config, path), cache_dir=pairs_config.cache_dir), None).directory

    first = open_directory()
    for same in ("model.hidden_size=16", "optimizer=sgd", "train.seed=1", "train.steps=7", "train.global_batch_size=8"):
        assert open_directory(same) == first, same
    others = [
        open_directory(other) for other in ("train.max_length=16", "model.max_vocabulary=150", "data.classes=[n,y]")
    ]
    os.utime(path, ns=(1, 1))
    others.append(open_directory())
    assert len({first, *others}) == 5


def test_the_tokenizer_of_a_checkpoint_is_used_and_copied(
    composed: Compose, tmp_path: Path, old_checkpoint: Path
) -> None:
    overrides = ("model=pretrained", f"model.checkpoint={old_checkpoint}", "train.max_length=16")
    path = tmp_path / "corpus.tsv"
    path.write_text("premise\thypothesis\tlabel\nAnna saw a dog.\tthe cats\t1\nanna\tdogs\t0\n")
    data = ["data=files", f"data.train={path}", f"data.validation={path}", f"cache_dir={tmp_path / 'cache'}"]
    config = configs.parse_config(composed(*data, *overrides))
    opened = open_cache(config, find_source(config))
    #     [CLS] anna saw a dog . [SEP] the cat ##s [SEP]
    assert list_examples(opened.train)[0] == ([2, 5, 6, 7, 9, 12, 3, 8, 10, 11, 3], [0] * 7 + [1] * 4)
    assert {path.name for path in opened.tokenizer_directory.iterdir()} == {"tokenizer.json", "vocab.txt"}
    key = opened.directory
    vocabulary = old_checkpoint / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text() + "more\n")
    again = open_cache(config, find_source(config))
    assert (again.directory == key, again.vocabulary) == (False, opened.vocabulary + 1)
