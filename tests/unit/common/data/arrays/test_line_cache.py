"""Plain text as blocks of tokens."""

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from common.config.data import LinesSettings
from common.config.schema import Config
from common.data.arrays import line_cache
from common.data.batches import GlobalBatch
from common.data.cache import open_transformed_cache, reopen_transformed_cache
from common.errors import UserError
from tests.conftest import MakeConfig

LinesConfig = Callable[..., Config]
TRAIN, VALIDATION = "To be, or not to be: that is the question.\n", "Whether 'tis nobler in the mind — to suffer\n"


@pytest.fixture
def lines_config(make_config: MakeConfig, tmp_path: Path) -> LinesConfig:
    """Return a function that makes a config of two texts in blocks of five tokens."""

    def make(train: str | bytes = TRAIN, validation: str = VALIDATION, tokenizer: str = "bytes") -> Config:
        (tmp_path / "train.txt").write_bytes(train if isinstance(train, bytes) else train.encode())
        (tmp_path / "validation.txt").write_text(validation, encoding="utf-8")
        config = make_config("data=lines", "data.train=t", "data.validation=v", "train.max_length=5")
        data = LinesSettings("lines", False, str(tmp_path / "train.txt"), str(tmp_path / "validation.txt"), tokenizer)
        return replace(config, data=data)

    return make


@pytest.mark.parametrize("length", [3, 5, 41])
def test_blocks_of_bytes(lines_config: LinesConfig, length: int) -> None:
    config = lines_config()
    cache = open_transformed_cache(replace(config, train=replace(config.train, max_length=length)), None)
    assert isinstance(cache, line_cache.ArrayCache)
    assert (cache.classes, cache.inputs) == ([], {"input_ids": ("int32", (length,))})
    assert cache.limits == {"input_ids": max((TRAIN + VALIDATION).encode())}
    for split, text in ((cache.train, TRAIN.encode()), (cache.validation, VALIDATION.encode())):
        ids = np.arange(len(split))
        arrays = split.gather(ids, ids)
        starts = range(0, len(text) - length, length)
        assert arrays["input_ids"].tolist() == [list(text[start : start + length]) for start in starts]
        assert arrays["labels"].tolist() == [list(text[start + 1 : start + length + 1]) for start in starts]
        assert arrays["labels"].dtype == arrays["input_ids"].dtype == np.int32
        assert split.loss_counts(ids).tolist() == [length] * len(ids)
        assert isinstance(split.labels, np.memmap) and np.array_equal(split.labels, arrays["labels"])


def test_left_over_tokens_are_logged(lines_config: LinesConfig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    open_transformed_cache(lines_config("0123456789abcd"), None)
    assert "train.txt: 14 tokens in 2 blocks of 5; 3 left over" in caplog.text


def test_a_file_just_long_enough(lines_config: LinesConfig, tmp_path: Path) -> None:
    assert len(open_transformed_cache(lines_config("012345"), None).train) == 1
    with pytest.raises(UserError) as raised:
        open_transformed_cache(lines_config("01234"), None)
    assert str(raised.value) == (
        f"{tmp_path}/train.txt: 5 tokens, too few for a block of 5 and the token after it; use a longer text, or "
        "lower train.max_length"
    )
    with pytest.raises(UserError, match=r"train.txt: 0 tokens, too few"):
        open_transformed_cache(lines_config(""), None)


def test_reopened(lines_config: LinesConfig) -> None:
    config = lines_config()
    first = open_transformed_cache(config, None)
    again = reopen_transformed_cache(config, first.directory)
    assert isinstance(again, line_cache.ArrayCache)
    assert (again.fingerprint, again.inputs) == (first.fingerprint, {"input_ids": ("int32", (5,))})
    wider = open_transformed_cache(replace(config, train=replace(config.train, max_length=6)), None)
    assert wider.fingerprint != first.fingerprint
    assert isinstance(config.data, LinesSettings)
    os.utime(config.data.train, ns=(1, 1))
    again = open_transformed_cache(config, None)
    assert (again.fingerprint, again.directory == first.directory) == (first.fingerprint, False)


def test_a_global_batch(lines_config: LinesConfig) -> None:
    split = open_transformed_cache(lines_config(), None).train
    parts = [part for rank in range(3) for part in GlobalBatch(1, np.arange(7), split, "global").shard(rank, 3)]
    assert [len(part["labels"]) for part in parts] == [3, 2, 2]
    rows = np.concatenate([part["input_ids"] for part in parts])
    assert sorted(bytes(row.astype(np.uint8)) for row in rows) == sorted(
        TRAIN.encode()[start : start + 5] for start in range(0, 35, 5)
    )


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        (b"good\nfine \xff bad\n", "train.txt:2: not UTF-8 at byte 6 of the line; save the file as UTF-8"),
        ("UTF-16".encode("utf-16"), "train.txt: UTF-16, or not a text file; save it as UTF-8"),
    ],
)
def test_not_utf8(lines_config: LinesConfig, tmp_path: Path, train: bytes, expected: str) -> None:
    with pytest.raises(UserError) as raised:
        open_transformed_cache(lines_config(train), None)
    assert str(raised.value).startswith(f"{tmp_path}/{expected}")


def test_missing_files(lines_config: LinesConfig, tmp_path: Path) -> None:
    config = lines_config()
    assert isinstance(config.data, LinesSettings)
    for train, expected in (
        ("", "data.train: has no value; set data.train=..."),
        ("none.txt", "data.train: no such file: none.txt"),
        (str(tmp_path), f"data.train: not a file: {tmp_path}; set it to one file of text"),
    ):
        with pytest.raises(UserError) as raised:
            open_transformed_cache(replace(config, data=replace(config.data, train=train)), None)
        assert str(raised.value) == expected


def test_both_splits_are_one_file(lines_config: LinesConfig, caplog: pytest.LogCaptureFixture) -> None:
    config = lines_config()
    assert isinstance(config.data, LinesSettings)
    open_transformed_cache(replace(config, data=replace(config.data, validation=config.data.train)), None)
    assert "data.validation is the same file as data.train" in caplog.text
