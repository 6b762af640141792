"""Caches of every kind: opened, reopened, and of a kind that this repository does not have."""

import logging
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from common.config.data import ImageSettings, TextSettings
from common.config.keys import HOST, SOURCE, key
from common.config.schema import Config
from common.data import atomic_directory
from common.data.batches import Split
from common.data.cache import _warn_of_unused_classes, open_transformed_cache, reopen_transformed_cache
from common.data.identity import collect_source_keys
from common.data.images.image_corpus import ImageCorpus, LabelledImages
from common.data.text.text_rows import TextRows, TextSource
from common.errors import UserError
from tests.conftest import MakeConfig

ARRAYS = {"text": "train.tokens.npy", "images": "train.images.npy"}


@pytest.fixture(params=ARRAYS)
def config(request: pytest.FixtureRequest, small_config: MakeConfig, make_config: MakeConfig) -> Config:
    """Return a config of text, then one of images."""
    return small_config() if request.param == "text" else make_config("model=convnet", "data=digits")


def gather_all(split: Split) -> dict[str, list]:
    """Return the arrays of all examples."""
    ids = np.arange(len(split))
    return {name: array.tolist() for name, array in split.gather(ids, ids).items()}


@pytest.mark.slow
def test_a_reopened_cache_is_the_same(config: Config) -> None:
    opened = open_transformed_cache(config, None)
    again = reopen_transformed_cache(config, opened.directory)
    assert type(again) is type(opened)
    assert (again.fingerprint, again.classes, str(again)) == (opened.fingerprint, opened.classes, str(opened))
    assert gather_all(again.train) == gather_all(opened.train)
    assert gather_all(again.validation) == gather_all(opened.validation)


def test_a_reopened_cache_is_not_hashed(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_transformed_cache(config, None)

    def fail(path: Path) -> str:
        raise AssertionError(f"{path} is hashed")

    monkeypatch.setattr(atomic_directory, "compute_checksum", fail)
    assert reopen_transformed_cache(config, opened.directory).fingerprint == opened.fingerprint
    with pytest.raises(AssertionError, match="is hashed"):
        open_transformed_cache(config, None)


def test_open_verifies_and_reopen_does_not(config: Config) -> None:
    opened = open_transformed_cache(config, None)
    path = opened.directory / ARRAYS[config.data.reads]
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert reopen_transformed_cache(config, opened.directory).fingerprint == opened.fingerprint
    assert path.read_bytes() != content
    assert open_transformed_cache(config, None).fingerprint == opened.fingerprint
    assert path.read_bytes() == content


def test_a_cache_that_was_removed(config: Config, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^.*/missing: manifest.json: cannot be read: .*; start the command again"):
        reopen_transformed_cache(config, tmp_path / "missing")


@pytest.mark.parametrize("labels", [[0, 0, 0], [1, 1], [2]])
def test_one_class_is_warned_of(caplog: pytest.LogCaptureFixture, labels: list[int]) -> None:
    _warn_of_unused_classes(np.array(labels, np.int32), ["a", "b", "c"][: labels[0] + 1])
    [message] = caplog.messages
    assert message.startswith(f"all {len(labels)} training examples are of class '{'abc'[labels[0]]}': nothing to")


def test_classes_without_an_example_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    _warn_of_unused_classes(np.array([3, 1, 2], np.int32), ["0", "1", "2", "3", "4"])
    _warn_of_unused_classes(np.array([0, 99], np.int32), [str(i) for i in range(100)])
    first, second = caplog.messages
    assert first == "classes without a training example: '0', '4' (2 of 5); integer labels count from 0"
    assert "'9', '10', ... (98 of 100)" in second


def test_every_class_has_an_example(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    open_transformed_cache(config, None)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_each_opening_warns_of_use_one_class(
    config: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, read in (("poems", read_poems), ("stamps", read_stamps)):
        add_module(monkeypatch, name, lambda data, read=read: use_one_class(read(data)))
    data = Poems("poems", False, "anna", "top") if config.data.reads == "text" else Stamps("stamps", False, "Peru")
    config = replace(config, data=data)
    for _ in ("built", "opened"):
        caplog.clear()
        open_transformed_cache(config, None)
        assert [message for message in caplog.messages if "all 2 training examples are of class" in message]


# A new kind of data: settings and a source module.


@dataclass(frozen=True)
class Poems(TextSettings):
    source = "poems"

    poet: str = key(SOURCE)
    shelf: str = key(HOST)


@dataclass(frozen=True)
class Stamps(ImageSettings):
    source = "stamps"

    country: str = key(SOURCE)


def read_poems(data: Poems) -> TextSource:
    rows = TextRows.from_memory("data.shelf", "poem ", [("old", "a rose is a rose"), ("new", "the dog saw a cat")])
    return TextSource(rows, rows, data_classes=["new", "old"])


def read_stamps(data: Stamps) -> ImageCorpus:
    images = np.arange(2 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4, 1)
    split = LabelledImages(images, np.array([0, 1], np.int32), "stamps", "stamps")
    return ImageCorpus(split, split, [data.country, "other"])


def use_one_class(corpus: TextSource | ImageCorpus) -> TextSource | ImageCorpus:
    """Return the corpus with one label for all training examples."""
    if isinstance(corpus, ImageCorpus):
        corpus.train.labels[:] = corpus.train.labels[0]
        return corpus
    rows = [("old", *texts) for _, _, _, texts in corpus.train]
    return replace(corpus, train=TextRows.from_memory("data.shelf", "poem ", rows))


def add_module(monkeypatch: pytest.MonkeyPatch, name: str, read: Any) -> None:
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(read=read, identify=collect_source_keys))


def test_a_new_kind_of_text(small_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    add_module(monkeypatch, "poems", read_poems)
    config = replace(small_config(), data=Poems("poems", False, poet="anna", shelf="top"))
    opened = open_transformed_cache(config, None)
    assert (opened.classes, gather_all(opened.train)["labels"]) == (["new", "old"], [1, 0])
    same, changed = Poems("poems", True, "anna", "low"), Poems("poems", False, "ben", "top")
    assert open_transformed_cache(replace(config, data=same), None).directory == opened.directory
    assert open_transformed_cache(replace(config, data=changed), None).directory != opened.directory


def test_a_new_kind_of_images(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    add_module(monkeypatch, "stamps", read_stamps)
    config = replace(make_config("model=convnet"), data=Stamps("stamps", False, country="Peru"))
    opened = open_transformed_cache(config, None)
    assert (opened.classes, gather_all(opened.validation)["labels"]) == (["Peru", "other"], [0, 1])
