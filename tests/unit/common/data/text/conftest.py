"""Configs of corpora for tests of the token cache."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from common.config import compose as configs
from common.config.data import FilesSettings
from common.config.schema import Config
from tests.conftest import SMALL_MODEL, Compose

Text = str | tuple[str, str]  # a single sentence or a pair

PAIRS: list[Text] = [(f"the dog saw {n} cats", f"anna did not see {n}") for n in range(40)]


def make_corpus_config(composed: Compose, directory: Path, texts: list[Text], *overrides: str) -> Config:
    """Return a config with these single sentences or pairs as both splits, and labels 0, 1, 0, ..."""
    rows = [
        {"label": index % 2, **dict(zip(("premise", "hypothesis"), [t] if isinstance(t, str) else t, strict=False))}
        for index, t in enumerate(texts)
    ]
    path = directory / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = configs.parse_config(composed("data=files", "data.train=x", "data.validation=x", *SMALL_MODEL, *overrides))
    hypothesis = None if isinstance(texts[0], str) else "hypothesis"
    return replace(with_corpus(config, str(path), hypothesis), cache_dir=str(directory / "cache"))


def with_corpus(config: Config, path: str, hypothesis: str | None = "hypothesis") -> Config:
    """Return the config with this file as both splits, without composing, which takes 0.1 s for new overrides."""
    assert isinstance(config.data, FilesSettings)
    return replace(config, data=replace(config.data, train=path, validation=path, hypothesis=hypothesis))


def with_max_length(config: Config, max_length: int) -> Config:
    return replace(config, train=replace(config.train, max_length=max_length))


@pytest.fixture
def pairs_config(composed: Compose, tmp_path: Path) -> Config:
    """Return a config of forty pairs, whose cache does not exist."""
    return make_corpus_config(composed, tmp_path, PAIRS)
