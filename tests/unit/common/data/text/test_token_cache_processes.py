"""The token cache in several processes: built once, rebuilt if the builder is killed, and opened in little memory."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from common.config import compose as configs
from common.config.schema import Config
from common.data.text import token_cache
from common.data.text.token_cache import open_cache
from common.data.text.token_cache_builder import TokenManifest
from tests.conftest import Python, StartPython, wait_until

pytestmark = pytest.mark.slow

WORKER = """
import os, sys, time
from pathlib import Path
from common.config.compose import load_config
from common.data.text import token_cache, token_cache_builder
from common.models import initial_weights

settings, rendezvous, processes, hang = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "hang"

def log_calls(function, name):
    def call(*arguments):
        with open(rendezvous.parent / "builds", "a") as file:
            file.write(name + "\\n")
        return function(*arguments)
    return call

def hang_in_validation(tokenizer, split, directory, name):
    if name == "train":
        return write_token_arrays(tokenizer, split, directory, name)
    (rendezvous.parent / "hangs").touch()
    time.sleep(60)

token_cache_builder.read_corpus = log_calls(token_cache_builder.read_corpus, "tokens")
initial_weights._draw_weights = log_calls(initial_weights._draw_weights, "weights")
write_token_arrays = token_cache_builder.write_token_arrays
if hang:
    token_cache_builder.write_token_arrays = hang_in_validation
(rendezvous / str(os.getpid())).touch()
while len(list(rendezvous.iterdir())) < processes:
    time.sleep(0.002)
config = load_config(settings)
cache = token_cache.open_cache(config, None)
checkpoint = initial_weights.open_initial_checkpoint(config, cache, None)
print(cache.fingerprint, checkpoint.fingerprint)
"""


@pytest.fixture
def rendezvous(pairs_config: Config, tmp_path: Path) -> Path:
    """Return an empty directory in which workers wait for each other. Their config is beside it."""
    configs.save_config(pairs_config, tmp_path / "config.yaml")
    (tmp_path / "rendezvous").mkdir()
    return tmp_path / "rendezvous"


def test_built_once_for_four_processes(rendezvous: Path, start_python: StartPython) -> None:
    settings = rendezvous.parent / "config.yaml"
    workers = [start_python(WORKER, settings, rendezvous, 4, "work") for _ in range(4)]
    outputs = [worker.communicate(timeout=60) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 4, outputs
    assert len({out for out, _ in outputs}) == 1
    assert (rendezvous.parent / "builds").read_text().split() == ["tokens", "weights"]


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
import json, sys
from pathlib import Path
import psutil
from common.config.compose import load_config
from common.data.text import token_cache

config = load_config(Path(sys.argv[1]))
token_cache.build_token_cache = None
before = psutil.Process().memory_info().rss
cache = token_cache.open_cache(config, None)
grown = psutil.Process().memory_info().rss - before
print(json.dumps({"rows": len(cache.train), "grown": grown}))
"""


@pytest.fixture
def million_rows(pairs_config: Config, tmp_path: Path) -> Iterator[Path]:
    """Return the path of the config of a cache of a million examples of forty tokens, built without tokenizing."""
    rows, tokens = 1_000_000, 40

    def fabricate(directory: Path, config: Config, source: None) -> TokenManifest:
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

    with patch.object(token_cache, "build_token_cache", fabricate):
        directory = open_cache(pairs_config, None).directory
    configs.save_config(pairs_config, tmp_path / "config.yaml")
    yield tmp_path / "config.yaml"
    shutil.rmtree(directory)


def test_opening_a_million_rows_takes_little_memory(million_rows: Path, python: Python) -> None:
    measured = json.loads(python(MEASURE, million_rows))
    assert measured["rows"] == 1_000_000
    assert measured["grown"] < 50 << 20
