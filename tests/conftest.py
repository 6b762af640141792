"""Fixtures and helpers that several test files share."""

import copy
import gc
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import pytest
from hypothesis import settings
from omegaconf import DictConfig
from safetensors.numpy import save_file

from benchmarks.two_hosts import TwoHosts, two_hosts
from common.cluster.supervisor import MIN_LIFETIME_SECONDS
from common.config.schema import Config
from common.data.text.token_cache import TokenizedSplit
from common.errors import UserError
from common.training.stop import SIGNALS
from tests.composition import compose_train, parse_quickly
from tests.keras_process import start_keras
from tests.slurm_cluster import Slurm, slurm_cluster

settings.register_profile("lockstep", deadline=None)  # a slow machine is not a failure
settings.load_profile("lockstep")

T = TypeVar("T")
Compose = Callable[..., DictConfig]
MakeConfig = Callable[..., Config]
MakeSplit = Callable[..., TokenizedSplit]
Python = Callable[..., str]
StartPython = Callable[..., subprocess.Popen[str]]

ROOT = Path(__file__).parents[1]
SMALL_CORPUS = ("data.train_examples=60", "data.validation_examples=12")
SMALL_MODEL = (
    "model.layers=1",
    "model.hidden_size=8",
    "model.intermediate_size=16",
    "model.max_vocabulary=200",  # too few tokens for whole words
)
# Processes with this model start in half the CPU time of processes with a text model: they import no packages for text,
# and TensorFlow traces a step quickly. An epoch has 10 steps, and its last batch is smaller than the others. AdamW has
# more state than the optimizer of the model's preset.
SMALL_IMAGES = ("model=convnet", "optimizer=adamw", "optimizer.learning_rate=1e-3", "train.global_batch_size=150")
PACED = "extensions=[tests.pacing]"  # for runs that must last until a test disturbs them
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS += ["anna", "saw", "a", "the", "dog", "cat", "##s", ".", "did", "not"]


def pytest_configure() -> None:
    """Restore signals that nohup or a background shell ignores: runs of the tests would inherit that."""
    gc.disable()  # until all tests are collected: their objects and those of the imports stay until the end
    for signum in SIGNALS:
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """Leave the objects of the imports and of all tests out of garbage collections, which take 0.5 s with them."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Record the fault of each test with the marker `survives` in the report, for the table of `make faults`."""
    for item in items:
        for marker in item.iter_markers("survives"):
            item.user_properties.append(("fault", marker.args[0]))


@pytest.fixture(scope="session")
def composed() -> Compose:
    """A function that composes conf/train.yaml with overrides, as the command line does."""
    return compose_train


@pytest.fixture
def make_config(tmp_path: Path) -> MakeConfig:
    """A function that returns a parsed config with overrides. The cache is in tmp_path."""

    def make(*overrides: str) -> Config:
        config = copy.deepcopy(parse_quickly(*overrides))
        has_cache = any(text.startswith("cache_dir=") for text in overrides)
        return config if has_cache else replace(config, cache_dir=str(tmp_path / "cache"))

    return make


@pytest.fixture
def small_config(make_config: MakeConfig) -> MakeConfig:
    """A function that returns a config with a small built-in corpus and model, which are prepared quickly."""
    return lambda *overrides: make_config(*SMALL_CORPUS, *SMALL_MODEL, *overrides)


@pytest.fixture(scope="session")
def make_split() -> MakeSplit:
    """A function that builds a split in memory. The first half of each example is its first segment."""

    def make(lengths: list[int], max_length: int = 512, classes: int = 3) -> TokenizedSplit:
        sizes = np.array(lengths, np.int64)
        return TokenizedSplit(
            tokens=np.arange(1, sizes.sum() + 1, dtype=np.uint32),
            offsets=np.concatenate(([0], np.cumsum(sizes))),
            first_lengths=((sizes + 1) // 2).astype(np.uint16),
            labels=(np.arange(len(sizes)) % classes).astype(np.int32),
            pad_id=0,
            max_length=max_length,
        )

    return make


@pytest.fixture
def old_checkpoint(tmp_path: Path) -> Path:
    """A BERT encoder in the format of 2018: no `bert.` prefix, gamma and beta, vocab.txt, no head."""
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    hf_config = {
        "model_type": "bert",
        "vocab_size": len(WORDS),
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "hidden_act": "gelu_new",
        "max_position_embeddings": 32,
        "type_vocab_size": 2,
        "torch_dtype": "float16",
    }
    (directory / "config.json").write_text(json.dumps(hf_config))
    (directory / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    shapes: dict[str, tuple[int, ...]] = {"embeddings.LayerNorm.gamma": (8,), "embeddings.LayerNorm.beta": (8,)}
    shapes |= {f"embeddings.{name}_embeddings.weight": (rows, 8) for name, rows in EMBEDDINGS}
    for name, outputs, inputs in LINEARS:
        shapes |= {f"encoder.layer.0.{name}.weight": (outputs, inputs), f"encoder.layer.0.{name}.bias": (outputs,)}
    for name in ("attention.output", "output"):
        shapes |= {f"encoder.layer.0.{name}.LayerNorm.{part}": (8,) for part in ("gamma", "beta")}
    stream = np.random.default_rng(0)
    weights = {name: stream.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    save_file({**weights, "cls.predictions.bias": np.ones(3, np.float32)}, directory / "model.safetensors")
    return directory


EMBEDDINGS = (("word", len(WORDS)), ("position", 32), ("token_type", 2))
LINEARS = (
    ("attention.self.query", 8, 8),
    ("attention.self.key", 8, 8),
    ("attention.self.value", 8, 8),
    ("attention.output.dense", 8, 8),
    ("intermediate.dense", 16, 8),
    ("output.dense", 8, 16),
)


@pytest.fixture(scope="session")
def python() -> Python:
    """A function that runs Python code with arguments in a new process, in the repository, and returns its output."""

    def run(code: str, *arguments: Any) -> str:
        command = [sys.executable, "-c", code, *map(str, arguments)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def keras_python() -> Iterator[Python]:
    """A function that runs Python code as `python` does, in a TensorFlow process that the tests of a worker share."""
    with start_keras(ROOT) as run:
        yield run


@pytest.fixture
def start_python() -> Iterator[StartPython]:
    """A function that starts Python code as `python` does, with piped output. The test kills it at its end."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, *map(str, arguments)]
        started.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def wait_until(condition: Callable[[], object], seconds: float = 180.0) -> None:
    """Wait until a condition is true. The timeout only ends a hang."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition is still false after {seconds:g} seconds"
        time.sleep(0.01)


def wait_until_restartable(pid: int) -> None:
    """Wait until a process has lived so long that a supervisor restarts it if it crashes."""
    started_at = psutil.Process(pid).create_time()  # a little before the supervisor reads its clock
    wait_until(lambda: time.time() - started_at > MIN_LIFETIME_SECONDS + 1)


@pytest.fixture(scope="module")
def hosts() -> Iterator[TwoHosts]:
    """Two hosts, which are network namespaces of this machine."""
    yield from or_skip(two_hosts())


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """A Slurm cluster of two nodes."""
    yield from or_skip(slurm_cluster())


def in_matrix(*values: Any) -> Any:
    """Return the parameters of a test with the marker `matrix`: `make test-faults-all` runs the test, CI does not."""
    return pytest.param(*values, marks=pytest.mark.matrix)


def selected_values(request: pytest.FixtureRequest, parameter: str) -> set[Any]:
    """Return the values of a parameter in the tests of the requesting module that this session runs."""
    calls = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    return {call.params[parameter] for call in calls if call is not None and parameter in call.params}


def or_skip(context: AbstractContextManager[T]) -> Iterator[T]:
    """Yield the value of a context manager. Skip the test if the context raises UserError on this machine."""
    try:
        with context as value:
            yield value
    except UserError as error:
        pytest.skip(str(error))
