"""A stand-in for the hub, and clients of it.

Each client is a subprocess: huggingface_hub takes HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE when it is imported.
"""

import json
import os
import subprocess
import sys
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


def write_split(path: Path, prefix: str, labels: list[int]) -> None:
    columns = {
        "promptID": range(len(labels)),
        "premise": [f"{prefix} {i}" for i in range(len(labels))],
        "label": labels,
    }
    columns |= {"hypothesis": [f"h{i}" for i in range(len(labels))], "genre": ["fiction"] * len(labels)}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


@pytest.fixture(scope="session")
def hub_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
def hub(hub_root: Path) -> Iterator[FakeHub]:
    """Start a hub that has two commits of a data set and of a checkpoint."""
    with fake_hub(hub_root) as server:
        yield server


class Client:
    """Runner of calls of common.data in a fresh process, with a separate cache of the hub."""

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
        """Return the result of every call, or the message of its UserError. sum(slept): the seconds between retries."""
        code = f"""
import json, time
slept, sleep = [], time.sleep
time.sleep = lambda seconds: (slept.append(seconds), sleep(seconds))
from common.errors import UserError
from common.config.data import HubSettings
from common.data.hub import download_checkpoint
from tests.unit.common.data.text.text_samples import read_corpus

def mnli(path={MNLI!r}, subset=None, revision={OLD!r}, validation="validation_matched", text="premise", classes=None):
    columns = dict(premise=text, hypothesis="hypothesis", label="label", classes=classes)
    place = dict(path=path, subset=subset, revision=revision, train_split="train", validation_split=validation)
    return HubSettings(kind="hub", allow_change=False, **columns, **place)

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
