import re
import subprocess
import sys
from pathlib import Path

import pytest

from common.data.text.token_cache import TokenCache
from common.prepare import prepare, resolve
from tests.conftest import ROOT, SMALL_CORPUS, SMALL_MODEL, MakeConfig


def test_prepare_is_idempotent(small_config: MakeConfig) -> None:
    first_cache, first = prepare(small_config())
    config = small_config()
    stamps = {path: path.stat().st_mtime_ns for path in Path(config.cache_dir).rglob("*") if path.is_file()}
    cache, initial = prepare(config)
    assert isinstance(cache, TokenCache)
    assert (cache.fingerprint, initial.fingerprint) == (first_cache.fingerprint, first.fingerprint)
    assert stamps == {path: path.stat().st_mtime_ns for path in Path(config.cache_dir).rglob("*") if path.is_file()}
    assert initial.hf_config["vocab_size"] == cache.vocabulary
    assert initial.hf_config["id2label"] == {"0": "entailment", "1": "neutral", "2": "contradiction"}
    assert (initial.directory / "tokenizer.json").read_bytes() == (
        cache.tokenizer_directory / "tokenizer.json"
    ).read_bytes()


@pytest.mark.parametrize(
    ("overrides", "steps", "total"),
    [
        (["train.steps=9"], 9, 9),
        (["train.steps=9", "schedule.total_steps=20"], 9, 20),
        (["train.epochs=2", "train.global_batch_size=32"], 4, 4),  # 60 examples: 32 and 28
        (["train.epochs=3", "train.global_batch_size=30", "schedule.total_steps=5"], 6, 5),
    ],
)
def test_resolve(small_config: MakeConfig, overrides: list[str], steps: int, total: int) -> None:
    config = small_config(*overrides)
    cache, _ = prepare(config)
    resolve(config, cache)
    assert (config.train.steps, config.train.epochs, config.schedule.total_steps) == (steps, None, total)
    again = small_config(*overrides)
    resolve(again, cache)
    resolve(again, cache)
    assert again == config


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "common.prepare", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def test_command(tmp_path: Path) -> None:
    arguments = (f"cache_dir={tmp_path}", *SMALL_CORPUS, *SMALL_MODEL)
    done = command(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    token_cache, checkpoint = done.stdout.splitlines()[-2:]
    assert re.fullmatch(rf"cache: {tmp_path}/tokens-\w{{16}} \(60 training and 12 validation examples\)", token_cache)
    assert re.fullmatch(rf"initial checkpoint: {tmp_path}/weights-\w{{16}}", checkpoint)


def test_command_with_a_users_error(tmp_path: Path) -> None:
    done = command(f"cache_dir={tmp_path / 'cache'}", "data=files", "data.train=missing.csv", "data.validation=x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: data.train: no such file: missing.csv\n"
    assert not (tmp_path / "cache").exists()
