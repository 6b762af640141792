"""Builder of the token cache: it streams, keeps the order, and does not depend on how the corpus is divided."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from common.config.data import FilesSettings
from common.config.schema import Config
from common.data.text import token_cache_builder
from common.data.text.text_corpus import LabelledTexts
from common.data.text.text_rows import COLUMNS, RowReader, TextRows
from common.data.text.token_cache import ARRAYS, open_cache
from common.data.text.tokenizer import train_wordpiece
from tests.conftest import SMALL_MODEL, MakeConfig
from tests.unit.common.data.text.text_samples import write

PAIRS = [(f"the dog saw {n} cats", f"anna did not see {n * 'x'}", n % 3) for n in range(50)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_wordpiece([text for *texts, _ in PAIRS for text in texts], 120)


@pytest.fixture
def config(make_config: MakeConfig) -> Config:
    return make_config("data=files", "data.train=x", "data.validation=x", *SMALL_MODEL)


def with_train(config: Config, train: Path | str, validation: str) -> Config:
    assert isinstance(config.data, FilesSettings)
    return replace(config, data=replace(config.data, train=str(train), validation=validation))


@pytest.mark.parametrize("suffix", [".jsonl", ".csv.gz", ".parquet"])
def test_the_cache_is_the_same_however_the_corpus_is_divided(config: Config, tmp_path: Path, suffix: str) -> None:
    validation = write(tmp_path / "validation.jsonl", PAIRS[:5])
    whole = open_cache(with_train(config, write(tmp_path / "whole.jsonl", PAIRS), validation), None)
    (tmp_path / "shards").mkdir()
    for index, start in enumerate(range(0, 50, 20)):
        write(tmp_path / "shards" / f"part-{index}{suffix}", PAIRS[start : start + 20])
    divided = open_cache(with_train(config, tmp_path / "shards", validation), None)
    assert divided.directory != whole.directory
    assert divided.fingerprint == whole.fingerprint


@pytest.mark.parametrize("chunk", [1, 7, 50, 4096])
def test_the_order_does_not_depend_on_the_chunks(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(token_cache_builder, "CHUNK", chunk)
    rows = TextRows.from_memory("data.train", "row ", [(label, *texts) for *texts, label in PAIRS])
    token_cache_builder.write_token_arrays(tokenizer, LabelledTexts(rows, {0: 0, 1: 1, 2: 2}, 50, 0), tmp_path, "train")
    arrays = {name: np.load(tmp_path / f"train.{name}.npy") for name in ARRAYS}
    encodings = [tokenizer.encode(premise, hypothesis) for premise, hypothesis, _ in PAIRS]
    bounds = arrays["offsets"]
    assert [arrays["tokens"][a:b].tolist() for a, b in pairwise(bounds)] == [encoding.ids for encoding in encodings]
    assert arrays["first_lengths"].tolist() == [encoding.type_ids.count(0) for encoding in encodings]
    assert arrays["labels"].tolist() == [label for *_, label in PAIRS]


def test_a_vocabulary_that_skips_ids(tmp_path: Path) -> None:
    tokenizer = Tokenizer(WordLevel({"the": 0, "[UNK]": 70_000}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    rows = TextRows.from_memory("data.train", "row ", [(0, "the dog")])
    token_cache_builder.write_token_arrays(tokenizer, LabelledTexts(rows, {0: 0}, 1, 0), tmp_path, "train")
    assert np.load(tmp_path / "train.tokens.npy").tolist() == [0, 70_000]
    assert token_cache_builder.count_embeddings(tokenizer) == 70_001


def test_a_split_is_never_held(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are read at most a few chunks ahead of the tokens on disk."""
    read, ahead = 0, []

    def read_rows() -> Iterator[tuple[int, Any]]:
        nonlocal read
        for read in range(1, 3001):
            yield read, (0, "the dog", "a cat")

    class Writer(token_cache_builder.ArrayWriter):
        def append(self, values: Any) -> None:
            super().append(values)
            ahead.append(read - self.length)

    monkeypatch.setattr(token_cache_builder, "CHUNK", 10)
    monkeypatch.setattr(token_cache_builder, "ArrayWriter", Writer)
    rows = TextRows("data.train", COLUMNS, [RowReader("row ", read_rows)])
    token_cache_builder.write_token_arrays(tokenizer, LabelledTexts(rows, {0: 0}, 3000, 0), tmp_path, "train")
    assert np.load(tmp_path / "train.labels.npy").shape == (3000,)
    assert max(ahead) <= 10 * (token_cache_builder.MAX_PENDING + 1)


def test_an_error_while_tokenizing_is_raised(tokenizer: Tokenizer, tmp_path: Path) -> None:
    rows = TextRows.from_memory("data.train", "row ", [(0, "the dog", "a cat")])
    broken = LabelledTexts(rows, {0: 0}, 1, 0)
    (tmp_path / "train.tokens.npy").mkdir()
    with pytest.raises(IsADirectoryError):
        token_cache_builder.write_token_arrays(tokenizer, broken, tmp_path, "train")
