"""Each client is a subprocess: huggingface_hub takes HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE when it is imported."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.common.data.fake_hub import FakeHub, fake_hub

CARD = """---
dataset_info:
- config_name: default
  features:
  - {name: promptID, dtype: int64}
  - {name: premise, dtype: string}
  - {name: hypothesis, dtype: string}
  - {name: genre, dtype: string}
  - name: label
    dtype: {class_label: {names: {'0': entailment, '1': neutral, '2': contradiction}}}
configs:
- config_name: default
  data_files:
  - {split: train, path: data/train-*}
  - {split: validation_matched, path: data/validation_matched-*}
---
"""
OLD, NEW = "a" * 40, "b" * 40
MNLI, BERT = "nyu-mll/Multi_NLI", "google-bert/bert-tiny"
WAYS_OUT = ("data=files", "model.checkpoint=<directory>", "data=builtin_nli", "model=bert_tiny")


def write_split(path: Path, prefix: str, labels: list[int]) -> None:
    columns = {
        "promptID": range(len(labels)),
        "premise": [f"{prefix} {i}" for i in range(len(labels))],
        "label": labels,
    }
    columns |= {"hypothesis": [f"h{i}" for i in range(len(labels))], "genre": ["fiction"] * len(labels)}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hub")
    for commit in (OLD, NEW):
        repository = root / "datasets" / MNLI / commit
        write_split(repository / "data/train-00000-of-00001.parquet", commit[:3], [2, 0, -1, 1])
        write_split(repository / "data/validation_matched-00000-of-00001.parquet", "v", [-1, 1])
        (repository / "README.md").write_text(CARD)
        repository = root / "models" / BERT / commit
        (repository / "nested").mkdir(parents=True)
        for name in (
            "README.md",
            "config.json",
            "model.safetensors",
            "pytorch_model.bin",
            "tokenizer.json",
            "vocab.txt",
        ):
            (repository / name).write_text(f"{name} of {commit}")
    return root


@pytest.fixture
def hub(root: Path) -> Iterator[FakeHub]:
    with fake_hub(root) as server:
        yield server


class Client:
    """Runs this project's calls in one fresh process each time, with a cache of its own."""

    def __init__(self, cache: Path, url: str):
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
            "HF_ENDPOINT": url,
            "HF_HOME": str(cache),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
            "HF_UPDATE_DOWNLOAD_COUNTS": "0",
        }

    def __call__(self, *calls: str, **environment: str) -> list:
        """What each call returns, or the message of its UserError."""
        code = f"""
import json
from common.data.text.corpus import read_corpus
from common.errors import UserError
from common.config.schema import Hub
from common.data.hub import download_checkpoint

def mnli(path={MNLI!r}, subset=None, revision={OLD!r}, validation="validation_matched", text="premise", classes=None):
    return Hub("hub", False, path, subset, revision, "train", validation, text, "hypothesis", "label", classes)

for call in {calls!r}:
    try:
        answer = eval(call)
    except UserError as error:
        answer = str(error)
    print("ANSWER", json.dumps(answer, default=lambda x: getattr(x, "__dict__", None) or str(x)))
"""
        environment = {**self.environment, **environment}
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100)
        assert run.returncode == 0, run.stderr
        answers = [json.loads(line[7:]) for line in run.stdout.splitlines() if line.startswith("ANSWER ")]
        assert not any(isinstance(answer, str) and "\n" in answer for answer in answers)
        return answers


@pytest.fixture
def client(tmp_path: Path, hub: FakeHub) -> Client:
    return Client(tmp_path, hub.url)


def corpus(commit: str) -> dict:
    return {
        "train": {
            "premises": [f"{commit[:3]} {i}" for i in (0, 1, 3)],
            "hypotheses": ["h0", "h1", "h3"],
            "labels": [2, 0, 1],
            "dropped": 1,
        },
        "validation": {"premises": ["v 1"], "hypotheses": ["h1"], "labels": [1], "dropped": 1},
        "classes": ["entailment", "neutral", "contradiction"],
    }


def test_data_set(client: Client, hub: FakeHub, tmp_path: Path) -> None:
    old, new, checkpoint_first, renamed, *errors = client(
        "read_corpus(mnli())",
        "read_corpus(mnli(revision='main'))",
        "read_corpus(mnli(), ['contradiction', 'entailment', 'neutral'])",
        "read_corpus(mnli(classes=['E', 'N', 'C']))",
        "read_corpus(mnli(validation='validation'))",
        "read_corpus(mnli(subset='mnli'))",
        "read_corpus(mnli(revision='v2'))",
        "read_corpus(mnli(path='nyu-mll/other'))",
        "read_corpus(mnli(path='not an id'))",
        "read_corpus(mnli(text='sentence1'))",
        "read_corpus(mnli(), ['x', 'y', 'z'])",
    )
    assert (old, new) == (corpus(OLD), corpus(NEW))
    assert checkpoint_first["train"]["labels"] == [0, 1, 2]
    assert checkpoint_first["classes"] == ["contradiction", "entailment", "neutral"]
    assert (renamed["train"]["labels"], renamed["classes"]) == ([2, 0, 1], ["E", "N", "C"])
    expected = [
        f"data.validation_split: no split 'validation' in {MNLI}; use one of train, validation_matched",
        f"data.path={MNLI}, data.subset=mnli: cannot be loaded: ValueError: BuilderConfig 'mnli' not found. ",
        f"data.path={MNLI}: no revision 'v2' on the hub; set data.revision to one it has",
        "data.path=nyu-mll/other: no such dataset on the hub; check the id, or set HF_TOKEN if private",
        "data.path=not an id: 'not an id' is not an id of the hub; those look like owner/name",
        f"data.path={MNLI}: no column 'sentence1'; set data.premise to one of ['promptID', 'premise', 'hypothesis', ",
        "data.classes: the data's classes ['entailment', 'neutral', 'contradiction'] are not among the checkpoint's [",
    ]
    for error, start in zip(errors, expected, strict=True):
        assert error.startswith(start)

    requests = len(hub.requests)
    assert client("read_corpus(mnli())", f"read_corpus(mnli(revision={NEW!r}))") == [corpus(OLD), corpus(NEW)]
    assert len(hub.requests) == requests, "a commit in the cache needs no request"

    hub.stop()
    calls = ("read_corpus(mnli())", "read_corpus(mnli(revision='main'))", "read_corpus(mnli(revision='v2'))")
    for environment in ({"HF_HUB_OFFLINE": "1"}, {}):
        *cached, missing = client(*calls, **environment)
        assert cached == [corpus(OLD), corpus(NEW)]
        assert missing.startswith(f"data.path={MNLI} (v2): not in the local cache and the hub cannot be reached")


def test_checkpoint(client: Client, hub: FakeHub, tmp_path: Path) -> None:
    hub.gated.add("google-bert/gated")
    (hub.root / "models/google-bert/gated" / OLD).mkdir(parents=True)
    calls = [f"download_checkpoint({BERT!r}, {revision!r})" for revision in (OLD, None, "main")]
    old, *new, no_revision, no_id, gated = client(
        *calls,
        f"download_checkpoint({BERT!r}, 'v2')",
        "download_checkpoint('google-bert/other', None)",
        "download_checkpoint('google-bert/gated', None)",
    )
    files = {"config.json", "model.safetensors", "tokenizer.json", "vocab.txt"}
    assert {path.name for path in Path(old).iterdir()} == files
    assert new == [new[0]] * 2
    assert [Path(path, "config.json").read_text()[-40:] for path in (old, new[0])] == [OLD, NEW]
    assert no_revision == f"model.checkpoint={BERT}: no revision 'v2' on the hub; set model.revision to one it has"
    assert no_id.startswith("model.checkpoint=google-bert/other: no such model on the hub")
    assert gated.startswith("model.checkpoint=google-bert/gated: gated; ask for access")

    hub.stop()
    for environment in ({"HF_HUB_OFFLINE": "1"}, {}):
        assert client(*calls, **environment) == [old, *new]


@pytest.mark.parametrize("environment", [{"HF_HUB_OFFLINE": "1"}, {}])
def test_unreachable_with_an_empty_cache(client: Client, hub: FakeHub, environment: dict[str, str]) -> None:
    hub.stop()
    started = time.monotonic()
    data, checkpoint, main = client(
        "read_corpus(mnli())",
        f"download_checkpoint({BERT!r}, {OLD!r})",
        f"download_checkpoint({BERT!r}, None)",
        **environment,
    )
    assert time.monotonic() - started < 15, "the libraries' retries take half a minute"
    assert data.startswith(f"data.path={MNLI} ({OLD}): not in the local cache and the hub cannot be reached (")
    assert checkpoint.startswith(f"model.checkpoint={BERT} ({OLD}): not in the local cache")
    assert main.startswith(f"model.checkpoint={BERT} (main): not in the local cache")
    for way in WAYS_OUT:
        assert all(way in error for error in (data, checkpoint, main))
