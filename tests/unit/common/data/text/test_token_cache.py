import json
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from common.config import compose as configs
from common.config.data import FilesSettings
from common.config.schema import Config
from common.data.text import token_cache as cache
from common.data.text import token_cache_builder
from common.data.text.token_cache import TokenCache, TokenizedSplit, open_cache
from common.models.pretrained import find_source
from tests.conftest import SMALL_MODEL, Compose, MakeSplit, Python, StartPython, wait_until

Text = str | tuple[str, str]

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(["the dog", "", "a cat " * 9])
single_or_pair = st.lists(text, min_size=1, max_size=12) | st.lists(st.tuples(text, text), min_size=1, max_size=12)


def config_of(composed: Compose, directory: Path, texts: list[Text], *overrides: str) -> Config:
    """A config whose both splits are these single sentences or pairs, with labels 0, 1, 0, ..."""
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
    """The config with this file as both splits. Not an override: composing takes 0.1 s for each new one."""
    assert isinstance(config.data, FilesSettings)
    return replace(config, data=replace(config.data, train=path, validation=path, hypothesis=hypothesis))


def with_max_length(config: Config, max_length: int) -> Config:
    return replace(config, train=replace(config.train, max_length=max_length))


def examples(split: TokenizedSplit) -> list[tuple[list[int], list[int]]]:
    """Token ids and type ids of every example, found through its attention mask."""
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


@settings(max_examples=30)
@given(texts=single_or_pair)
def test_round_trip(composed: Compose, tmp_path_factory: pytest.TempPathFactory, texts: list[Text]) -> None:
    """What comes out of the cache is what the tokenizer makes of the text, whatever the chunks were."""
    with patch.object(token_cache_builder, "CHUNK", 5):
        opened = open_cache(config_of(composed, tmp_path_factory.mktemp("corpus"), texts), None)
    tokenizer = Tokenizer.from_file(str(opened.tokenizer_directory / "tokenizer.json"))
    for split in (opened.train, opened.validation):
        encodings = [tokenizer.encode(*([t] if isinstance(t, str) else t)) for t in texts]
        assert examples(split) == [(encoding.ids, encoding.type_ids) for encoding in encodings]
        assert split.labels.tolist() == [index % 2 for index in range(len(texts))]
    assert opened.vocabulary == tokenizer.get_vocab_size()
    assert opened.classes == ["0", "1"][: len(texts)]


@settings(max_examples=30)
@given(texts=single_or_pair, max_length=st.integers(3, 30))
def test_longer_examples_are_cut(
    composed: Compose, tmp_path_factory: pytest.TempPathFactory, texts: list[Text], max_length: int
) -> None:
    config = with_max_length(config_of(composed, tmp_path_factory.mktemp("corpus"), texts), max_length)
    opened = open_cache(config, None)
    tokenizer = Tokenizer.from_file(str(opened.tokenizer_directory / "tokenizer.json"))
    tokenizer.no_truncation()
    separator = tokenizer.token_to_id("[SEP]")
    for t, (ids, type_ids) in zip(texts, examples(opened.train), strict=True):
        whole = tokenizer.encode(*([t] if isinstance(t, str) else t))
        assert len(ids) == min(max_length, len(whole.ids))
        for segment in set(whole.type_ids):  # [CLS] and what is left of each segment, then its [SEP]
            kept = [token for token, kind in zip(ids, type_ids, strict=True) if kind == segment]
            complete = [token for token, kind in zip(whole.ids, whole.type_ids, strict=True) if kind == segment]
            assert kept[:-1] == complete[: len(kept) - 1]
            assert kept[-1] == separator


@pytest.mark.parametrize(("lengths", "width"), [([3], 8), ([8], 8), ([9, 2], 16), ([17, 1], 20), ([20], 20)])
def test_width_is_a_multiple_of_eight_up_to_max_length(make_split: MakeSplit, lengths: list[int], width: int) -> None:
    assert make_split(lengths, max_length=20).padded_width(np.arange(len(lengths))) == width


@pytest.fixture
def pairs_config(composed: Compose, tmp_path: Path) -> Config:
    """A config of forty pairs."""
    return config_of(composed, tmp_path, [(f"the dog saw {n} cats", f"anna did not see {n}") for n in range(40)])


@pytest.fixture
def no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on reading a corpus fails."""

    def fail(*arguments: Any) -> None:
        raise AssertionError("the corpus is read")

    monkeypatch.setattr(token_cache_builder, "read_corpus", fail)


@pytest.fixture
def built(pairs_config: Config) -> TokenCache:
    return open_cache(pairs_config, None)


@pytest.mark.usefixtures("built", "no_text")
def test_a_second_start_reads_no_text(pairs_config: Config, built: TokenCache) -> None:
    again = open_cache(pairs_config, None)
    assert again.fingerprint == built.fingerprint
    assert examples(again.train) == examples(built.train)
    assert isinstance(again.train.tokens, np.memmap)
    with pytest.raises(AssertionError, match="the corpus is read"):
        open_cache(with_max_length(pairs_config, 16), None)


@pytest.mark.parametrize("name", ["train.tokens.npy", "validation.offsets.npy", "tokenizer/tokenizer.json"])
@pytest.mark.parametrize("damage", ["truncated", "altered", "removed"])
def test_damage_is_found_reported_and_repaired(
    pairs_config: Config, built: TokenCache, caplog: pytest.LogCaptureFixture, name: str, damage: str
) -> None:
    path = built.directory / name
    content = path.read_bytes()
    expected = examples(built.train)
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if damage == "truncated" else content[:-1] + bytes([content[-1] ^ 1]))
    with caplog.at_level(logging.WARNING, "lockstep"):
        again = open_cache(pairs_config, None)
    assert [message for message in caplog.messages if name in message and "building it again" in message]
    assert again.fingerprint == built.fingerprint
    assert path.read_bytes() == content
    assert examples(again.train) == expected


def test_what_is_in_the_key(pairs_config: Config, composed: Compose) -> None:
    """A value that changes the tokens, and no other, leads to another cache."""

    assert isinstance(pairs_config.data, FilesSettings)
    path = pairs_config.data.train

    def directory(*overrides: str) -> Path:
        config = configs.parse_config(
            composed("data=files", "data.train=x", "data.validation=x", *SMALL_MODEL, *overrides)
        )
        return open_cache(replace(with_corpus(config, path), cache_dir=pairs_config.cache_dir), None).directory

    first = directory()
    for same in ("model.hidden_size=16", "optimizer=sgd", "train.seed=1", "train.steps=7", "train.global_batch_size=8"):
        assert directory(same) == first, same
    others = [directory(other) for other in ("train.max_length=16", "model.max_vocabulary=150", "data.classes=[n,y]")]
    os.utime(path, ns=(1, 1))
    others.append(directory())
    assert len({first, *others}) == 5


def test_a_checkpoints_tokenizer_is_used_and_kept(composed: Compose, tmp_path: Path, old_checkpoint: Path) -> None:
    overrides = ("model=pretrained", f"model.checkpoint={old_checkpoint}", "train.max_length=16")
    path = tmp_path / "corpus.tsv"
    path.write_text("premise\thypothesis\tlabel\nAnna saw a dog.\tthe cats\t1\nanna\tdogs\t0\n")
    data = ["data=files", f"data.train={path}", f"data.validation={path}", f"cache_dir={tmp_path / 'cache'}"]
    config = configs.parse_config(composed(*data, *overrides))
    opened = open_cache(config, find_source(config))
    #     [CLS] anna saw a dog . [SEP] the cat ##s [SEP]
    assert examples(opened.train)[0] == ([2, 5, 6, 7, 9, 12, 3, 8, 10, 11, 3], [0] * 7 + [1] * 4)
    assert {path.name for path in opened.tokenizer_directory.iterdir()} == {"tokenizer.json", "vocab.txt"}
    key = opened.directory
    vocabulary = old_checkpoint / "vocab.txt"
    vocabulary.write_text(vocabulary.read_text() + "more\n")
    again = open_cache(config, find_source(config))
    assert (again.directory == key, again.vocabulary) == (False, opened.vocabulary + 1)


WORKER = """
import os, sys, time
from pathlib import Path
from common.config import compose as config
from common.models import initial_weights as weights
from common.data.text import build
from common.data.text import token_cache as cache

settings, rendezvous, processes, hang = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "hang"

def counted(function, name):
    def call(*arguments):
        with open(rendezvous.parent / "builds", "a") as file:
            file.write(name + "\\n")
        return function(*arguments)
    return call

def hanging(tokenizer, split, directory, name):
    if name == "train":
        return tokenize(tokenizer, split, directory, name)
    (rendezvous.parent / "hangs").touch()
    time.sleep(60)

build.read_corpus = counted(build.read_corpus, "tokens")
weights._draw = counted(weights._draw, "weights")
tokenize = build.tokenize
if hang:
    build.tokenize = hanging
(rendezvous / str(os.getpid())).touch()
while len(list(rendezvous.iterdir())) < processes:
    time.sleep(0.002)
run = config.load(settings)
opened = cache.open_cache(run, None)
initial = weights.open_initial_checkpoint(run, opened, None)
print(opened.fingerprint, initial.fingerprint)
"""


@pytest.fixture
def rendezvous(pairs_config: Config, tmp_path: Path) -> Path:
    """An empty directory where workers wait for each other; their config is beside it."""
    configs.save_config(pairs_config, tmp_path / "config.yaml")
    (tmp_path / "rendezvous").mkdir()
    return tmp_path / "rendezvous"


@pytest.mark.slow
def test_built_once_for_eight_processes(rendezvous: Path, start_python: StartPython) -> None:
    settings = rendezvous.parent / "config.yaml"
    workers = [start_python(WORKER, settings, rendezvous, 8, "work") for _ in range(8)]
    outputs = [worker.communicate(timeout=60) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 8, outputs
    assert len({out for out, _ in outputs}) == 1
    assert (rendezvous.parent / "builds").read_text().split() == ["tokens", "weights"]


@pytest.mark.slow
@pytest.mark.survives("SIGKILL of the token cache's builder, 8 processes waiting")
def test_a_killed_builder_is_replaced(rendezvous: Path, start_python: StartPython, pairs_config: Config) -> None:
    settings = rendezvous.parent / "config.yaml"
    builder = start_python(WORKER, settings, rendezvous, 1, "hang")
    wait_until((rendezvous.parent / "hangs").exists)
    waiters = [start_python(WORKER, settings, rendezvous, 9, "work") for _ in range(8)]
    wait_until(lambda: len(list(rendezvous.iterdir())) == 9)
    assert len(list(Path(pairs_config.cache_dir).glob("*.partial"))) == 1
    builder.kill()
    outputs = [waiter.communicate(timeout=60) for waiter in waiters]
    assert [waiter.returncode for waiter in waiters] == [0] * 8, outputs
    opened = open_cache(pairs_config, None)
    assert {out.split()[0] for out, _ in outputs} == {opened.fingerprint}
    assert len(opened.train) == 40
    assert not list(Path(pairs_config.cache_dir).glob("*.partial"))
    assert (rendezvous.parent / "builds").read_text().split() == ["tokens", "tokens", "weights"]


MEASURE = """
import json, sys, time
from pathlib import Path
import psutil
from common.config import compose as config
from common.data.text import token_cache as cache

settings = config.load(Path(sys.argv[1]))
cache.build = None
before = psutil.Process().memory_info().rss
opened = cache.open_cache(settings, None)
grown = psutil.Process().memory_info().rss - before
seconds = []
for _ in range(8):
    start = time.perf_counter()
    cache.open_cache(settings, None)
    seconds.append(time.perf_counter() - start)
print(json.dumps({"rows": len(opened.train), "grown": grown, "seconds": min(seconds)}))
"""


@pytest.fixture
def million_rows(pairs_config: Config, tmp_path: Path) -> Iterator[Path]:
    """The config of a cache of a million examples of forty tokens, made without tokenizing."""
    rows, tokens = 1_000_000, 40

    def fabricate(directory: Path, config: Config, source: None) -> dict[str, Any]:
        for split, count in (("train", rows), ("validation", 100)):
            arrays = {
                "tokens": np.random.default_rng(0).integers(0, 200, count * tokens, np.uint16),
                "offsets": np.arange(0, count * tokens + 1, tokens),
                "first_lengths": np.full(count, tokens // 2, np.uint16),
                "labels": np.zeros(count, np.int32),
            }
            for name, array in arrays.items():
                np.save(directory / f"{split}.{name}.npy", array)
        return {"classes": ["0"], "vocabulary": 200, "pad_id": 0, "max_length": 128, "dropped": 0}

    with patch.object(cache, "build", fabricate):
        directory = open_cache(pairs_config, None).directory
    configs.save_config(pairs_config, tmp_path / "config.yaml")
    yield tmp_path / "config.yaml"
    shutil.rmtree(directory)


def test_opening_a_million_rows(million_rows: Path, python: Python) -> None:
    measured = json.loads(python(MEASURE, million_rows))
    assert measured["rows"] == 1_000_000
    assert measured["seconds"] < 0.100
    assert measured["grown"] < 50 << 20
