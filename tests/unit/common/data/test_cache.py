"""Caches of every kind: opened, reopened, and of a kind that this repository does not have."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.config.data import Images, Text
from common.config.keys import HOST, SOURCE, key
from common.config.schema import Config
from common.data import atomic_directory
from common.data.batches import Split
from common.data.cache import open_cache, reopen_cache
from common.data.identity import source_keys
from common.data.images.corpus import ImageCorpus
from common.data.images.corpus import Images as ImageSplit
from common.data.text.rows import Rows, Source
from common.errors import UserError
from tests.conftest import MakeConfig

ARRAYS = {"text": "train.tokens.npy", "images": "train.images.npy"}


@pytest.fixture(params=ARRAYS)
def config(request: pytest.FixtureRequest, small_config: MakeConfig, make_config: MakeConfig) -> Config:
    """A config of text and one of images."""
    return small_config() if request.param == "text" else make_config("model=convnet", "data=digits")


def everything(split: Split) -> dict[str, list]:
    """The arrays of all examples."""
    ids = np.arange(len(split))
    return {name: array.tolist() for name, array in split.gather(ids, ids).items()}


def test_a_reopened_cache_is_the_same(config: Config) -> None:
    opened = open_cache(config, None)
    again = reopen_cache(config, opened.directory)
    assert type(again) is type(opened)
    assert (again.fingerprint, again.classes, str(again)) == (opened.fingerprint, opened.classes, str(opened))
    assert everything(again.train) == everything(opened.train)
    assert everything(again.validation) == everything(opened.validation)


def test_a_reopened_cache_is_not_hashed(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_cache(config, None)

    def fail(path: Path) -> str:
        raise AssertionError(f"{path} is hashed")

    monkeypatch.setattr(atomic_directory, "checksum", fail)
    assert reopen_cache(config, opened.directory).fingerprint == opened.fingerprint
    with pytest.raises(AssertionError, match="is hashed"):
        open_cache(config, None)


def test_open_verifies_and_reopen_does_not(config: Config) -> None:
    opened = open_cache(config, None)
    path = opened.directory / ARRAYS[config.data.reads]
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert reopen_cache(config, opened.directory).fingerprint == opened.fingerprint
    assert path.read_bytes() != content
    assert open_cache(config, None).fingerprint == opened.fingerprint
    assert path.read_bytes() == content


def test_a_cache_that_was_removed(config: Config, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="^.*/missing: cannot be read .*; start the command again to rebuild it$"):
        reopen_cache(config, tmp_path / "missing")


# A new kind of data is a schema and a source module.


@dataclass(frozen=True)
class Poems(Text):
    source = "poems"

    poet: str = key(SOURCE)
    shelf: str = key(HOST)


@dataclass(frozen=True)
class Stamps(Images):
    source = "stamps"

    country: str = key(SOURCE)


def read_poems(data: Poems) -> Source:
    rows = Rows("poem ", [["a rose is a rose", "the dog saw a cat"]], ["old", "new"], [1, 2])
    return Source(rows, rows, names=["new", "old"])


def read_stamps(data: Stamps) -> ImageCorpus:
    images = np.arange(2 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4, 1)
    split = ImageSplit(images, np.array([0, 1], np.int32), "stamps", "stamps")
    return ImageCorpus(split, split, [data.country, "other"])


def add_module(monkeypatch: pytest.MonkeyPatch, name: str, read: Any) -> None:
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(read=read, identity=source_keys))


def test_a_new_kind_of_text(small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    add_module(monkeypatch, "poems", read_poems)
    config = replace(small_config(), data=Poems("poems", False, poet="anna", shelf="top"))
    opened = open_cache(config, None)
    assert (opened.classes, everything(opened.train)["labels"]) == (["new", "old"], [1, 0])
    assert open_cache(replace(config, data=Poems("poems", True, "anna", "low")), None).directory == opened.directory
    assert open_cache(replace(config, data=Poems("poems", False, "ben", "top")), None).directory != opened.directory


def test_a_new_kind_of_images(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    add_module(monkeypatch, "stamps", read_stamps)
    config = replace(make_config("model=convnet"), data=Stamps("stamps", False, country="Peru"))
    opened = open_cache(config, None)
    assert (opened.classes, everything(opened.validation)["labels"]) == (["Peru", "other"], [0, 1])
