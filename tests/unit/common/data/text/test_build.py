"""Building a token cache: streamed, in order, and the same however the corpus is divided into files."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from common.config.data import FilesSettings
from common.config.schema import Config
from common.data.text import build
from common.data.text.corpus import Split
from common.data.text.rows import COLUMNS, Part, Rows
from common.data.text.token_cache import ARRAYS, open_cache
from common.data.text.tokenizer import train_wordpiece
from tests.conftest import SMALL_MODEL, MakeConfig
from tests.unit.common.data.text.text_files import write

PAIRS = [(f"the dog saw {n} cats", f"anna did not see {n * 'x'}", n % 3) for n in range(50)]


@pytest.fixture
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
def test_the_order_does_not_depend_on_which_chunk_is_ready_first(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(build, "CHUNK", chunk)
    rows = Rows.of("data.train", "row ", [(label, *texts) for *texts, label in PAIRS])
    build.tokenize(tokenizer, Split(rows, {0: 0, 1: 1, 2: 2}, 50, 0), tmp_path, "train")
    arrays = {name: np.load(tmp_path / f"train.{name}.npy") for name in ARRAYS}
    encodings = [tokenizer.encode(premise, hypothesis) for premise, hypothesis, _ in PAIRS]
    bounds = arrays["offsets"]
    assert [arrays["tokens"][a:b].tolist() for a, b in zip(bounds[:-1], bounds[1:], strict=True)] == [
        encoding.ids for encoding in encodings
    ]
    assert arrays["first_lengths"].tolist() == [encoding.type_ids.count(0) for encoding in encodings]
    assert arrays["labels"].tolist() == [label for *_, label in PAIRS]


def test_a_split_is_never_held(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more rows are read than a few chunks ahead of those whose tokens are on the disk."""
    read, ahead = 0, []

    def records() -> Iterator[tuple[int, Any]]:
        nonlocal read
        for read in range(1, 3001):
            yield read, (0, "the dog", "a cat")

    class Writer(build.ArrayWriter):
        def append(self, values: Any) -> None:
            super().append(values)
            ahead.append(read - self.length)

    monkeypatch.setattr(build, "CHUNK", 10)
    monkeypatch.setattr(build, "ArrayWriter", Writer)
    rows = Rows("data.train", COLUMNS, [Part("row ", records)])
    build.tokenize(tokenizer, Split(rows, {0: 0}, 3000, 0), tmp_path, "train")
    assert np.load(tmp_path / "train.labels.npy").shape == (3000,)
    assert max(ahead) <= 10 * (build.WAITING + 1)


def test_an_error_while_tokenizing_is_raised(tokenizer: Tokenizer, tmp_path: Path) -> None:
    rows = Rows.of("data.train", "row ", [(0, "the dog", "a cat")])
    broken = Split(rows, {0: 0}, 1, 0)
    (tmp_path / "train.tokens.npy").mkdir()
    with pytest.raises(IsADirectoryError):
        build.tokenize(tokenizer, broken, tmp_path, "train")
