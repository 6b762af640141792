"""A side in another Python environment: its runs, the stage "environment" of a diagnosis, and mistakes."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from common.compare.__main__ import main as compare
from common.diagnose.__main__ import main as diagnose
from common.diagnose.diagnosis import read_diagnosis
from common.map.__main__ import main as map_models
from common.training.rows import read_rows
from tests.conftest import ROOT, in_matrix
from tests.environments import ENVIRONMENTS, find_python, link_package, make_environment
from tests.parity.conftest import make_overrides

MADE = Path(ROOT, "build", "environments")  # by make test-environments
# Of PLANTS, CI runs the first one, and make test-faults-all the second one; make test-environments runs all.
IN_CI, IN_MATRIX = "epsilon", "initial accumulator"
MODEL = """
import sys

import torch
from torch import nn

def build():
    norm = nn.LayerNorm(16)  # with PyTorch's default epsilon
    return nn.Sequential(nn.Linear(8, 16), norm, nn.GELU(), nn.Linear(16, 16), nn.LeakyReLU(0.1), nn.Linear(16, 3))

class Filter(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 4, padding="same", padding_mode="replicate")
        self.out = nn.Linear(32, 3)

    def forward(self, x):
        return self.out(self.conv(x[:, None]).flatten(1))

class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 3)

    def forward(self, x):  # as another version of a library may do
        return self.out(nn.functional.dropout(x, 0.1, self.training) if "patched" in sys.prefix else x)
"""


class Plant(NamedTuple):
    """A change of a file of PyTorch, and what a diagnosis names first: a stage, and a tensor of it."""

    file: str
    old: str
    new: str
    stage: str
    tensor: str
    model: str = "build"


PLANTS = {
    "epsilon": Plant("nn/modules/normalization.py", "eps: float = 1e-5", "eps: float = 1e-3", "activations", "1"),
    "padding": Plant(
        "nn/modules/conv.py",
        "left_pad = total_padding // 2",
        "left_pad = total_padding - total_padding // 2",
        "activations",
        "conv",
        "Filter",
    ),
    "rounding mode": Plant(
        "nn/modules/activation.py",
        "return F.gelu(input, approximate=self.approximate)",
        "return F.gelu((input + 2.0**28) - 2.0**28, approximate=self.approximate)",  # a cast would be corrected
        "activations",
        "input of 3",
    ),
    "float32 constant": Plant(
        "nn/modules/activation.py",
        "return F.leaky_relu(input, self.negative_slope, self.inplace)",
        "return F.leaky_relu(input, __import__('numpy').float32(self.negative_slope).item(), self.inplace)",
        "activations",
        "input of 5",
    ),
    "initial accumulator": Plant(
        "optim/adam.py",
        'state["exp_avg_sq"] = torch.zeros_like(',
        'state["exp_avg_sq"] = torch.ones_like(',
        "optimizer",
        "B, step 1: exp_avg_sq.0.weight",
    ),
}

# A padded query, all of whose keys are masked, attends to them before Keras 3.10, and to none since
# (keras-team/keras 21149). Without scores it does not see the mask of its queries before 3.7 (20488).
ATTENTION = """
import keras
from keras import layers

def build(scores=False):
    tokens = keras.Input((12,), dtype="int32", name="tokens")
    x = layers.Embedding(20, 16, mask_zero=True)(tokens)
    attention = layers.MultiHeadAttention(2, 8, name="attention")
    x = attention(x, x, return_attention_scores=True)[0] if scores else attention(x, x)
    return keras.Model(tokens, layers.Dense(3)(layers.GlobalMaxPooling1D()(x)))
"""
# Since Keras 3.14 the penalty of an activity regularizer is divided by the batch size (22021)
REGULARIZER = """
import sys

import keras
import numpy as np
from keras import layers

from tf_impl.record import FitRecorder

stream = np.random.default_rng(0)
hidden = layers.Dense(16, activity_regularizer=keras.regularizers.L2(0.01), name="hidden")
model = keras.Sequential([keras.Input((8,)), hidden, layers.Dense(3, name="output")])
for weight in model.weights:
    weight.assign(stream.standard_normal(weight.shape))
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x, y = stream.standard_normal((64, 8)).astype("float32"), stream.integers(0, 3, 64)
model.fit(x, y, batch_size=16, shuffle=False, verbose=0, callbacks=[FitRecorder(sys.argv[1])])
"""


def run(module: str, *arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of Lockstep in a directory, which user code is imported from."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (directory, ROOT)))}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=400)


def plant(name: str, directory: Path) -> str:
    """Make an environment with one of PLANTS, and return its interpreter."""
    packages = make_environment(directory)
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    link_package(Path(spec.origin).parent, packages / "torch", PLANTS[name].file, PLANTS[name].old, PLANTS[name].new)
    return find_python(directory)


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment whose PyTorch has another default epsilon of LayerNorm."""
    return plant("epsilon", tmp_path_factory.mktemp("environments") / "patched")


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a model and data."""
    directory = tmp_path_factory.mktemp("experiment")
    stream = np.random.default_rng(0)
    for name, count in (("train", 96), ("validation", 32)):
        x = 0.1 * stream.standard_normal((count, 8))
        np.savez(directory / f"{name}.npz", x=x.astype(np.float32), labels=stream.integers(0, 3, count))
    (directory / "my_model.py").write_text(MODEL)
    return directory


def list_arguments(directory: Path) -> list[str]:
    data = ["data=arrays", f"data.train={directory}/train.npz", f"data.validation={directory}/validation.npz"]
    return ["model=custom", "model.torch=my_model:build", *data, f"cache_dir={directory}/cache"]


@pytest.mark.parametrize("name", [in_matrix(name) if name == IN_MATRIX else name for name in PLANTS])
def test_a_change_of_a_package_is_named(name: str, experiment: Path, tmp_path: Path) -> None:
    if name not in (IN_CI, IN_MATRIX) and not MADE.exists():
        pytest.skip(f"{MADE}: not there; make test-environments makes it")
    python, planted = plant(name, tmp_path / "patched"), PLANTS[name]
    arguments = [*list_arguments(experiment), f"model.torch=my_model:{planted.model}", f"b.python={python}"]
    done = run("common.diagnose", *arguments, "a=torch:single", "b=torch:single", "output=d", directory=experiment)
    assert done.returncode == 1, done.stderr
    record = read_diagnosis(experiment / "d" / "diagnosis.json")
    assert record["first"] == {"stage": planted.stage, "tensor": planted.tensor}
    cause = next(cause for cause in record["causes"] if cause["stage"] == planted.stage)
    expected = f"both environments have one version of torch, but these files differ: torch/{planted.file}"
    assert cause["sentence"].endswith(expected)
    assert {stage["stage"]: stage["verdict"] for stage in record["ladder"]}["environment"] == "equal"


def test_runs_in_two_environments_are_compared(patched: str, experiment: Path) -> None:
    arguments = ["data=digits", "model=convnet", "train.steps=4", f"cache_dir={experiment}/cache", "output=c"]
    environments = f"environments={{other: {patched}}}"
    names = "run=[torch:single,torch:single@other]"
    done = run("common.compare", names, environments, *arguments, "--check", directory=experiment)
    assert done.returncode == 0, done.stdout + done.stderr
    a, b = sorted((experiment / "runs").glob("torch-single-*/"))
    assert read_rows(a / "metrics.jsonl")[-1]["loss"] == read_rows(b / "metrics.jsonl")[-1]["loss"]
    assert f"python: {patched}" in "".join((path / "config.yaml").read_text() for path in (a, b))
    flags = json.loads((b / "summary.json").read_text())["environment"]["flags"]
    assert flags["threads"] >= 1 and flags["tf32"] is False
    assert "torch single @other: completed" in done.stdout


def test_noise_that_only_the_other_environment_has_is_refused(patched: str, experiment: Path) -> None:
    arguments = [*list_arguments(experiment), "model.torch=my_model:Noisy", "strategy=single", "train.steps=2"]
    here = run("torch_impl.train", *arguments, directory=experiment)
    assert here.returncode == 0, here.stderr
    there = run("torch_impl.train", *arguments, f"python={patched}", directory=experiment)
    expected = f"error: python={patched}: in that environment, model.torch: model (dropout) draws random numbers that"
    assert there.returncode == 2 and there.stderr.startswith(expected), there.stderr


MISTAKES: dict[str, tuple[Callable[[Sequence[str]], int], list[str], str]] = {
    "no Python": (
        diagnose,
        ["a=torch:single", "b=tf:single", "b.python=/bin/true"],
        "b.python=/bin/true: is not a Python interpreter",
    ),
    "of a side of a map": (
        map_models,
        ["model.torch=a:b", "model.tf=c:d", "inputs={x: float32[2]}", "tf.python=TMP/none"],
        "tf.python=TMP/none: no such file",
    ),
    "an unknown environment": (
        compare,
        ["run=[torch:single@new]", "environments={old: TMP/none}"],
        "run=torch:single@new: no environment new; there are old; add new: PATH to it",
    ),
    "no environments": (compare, ["run=[torch:ddp@new]"], "run=torch:ddp@new: no environment new;"),
    "of an environment": (
        compare,
        ["run=[torch:single@old]", "environments={old: TMP/none}"],
        "environments.old=TMP/none: no such file",
    ),
    "of all runs": (
        compare,
        ["run=[torch:single]", "python=/bin/true"],
        "python: set by run=[...]; use environments={NAME: PATH} and run=[...@NAME]",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_before_anything_starts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command, arguments, expected = MISTAKES[name]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as raised:
        command([text.replace("TMP", str(tmp_path)) for text in arguments])
    output, error = capsys.readouterr()
    assert (raised.value.code, output) == (2, "")
    assert error.startswith(f"error: {expected}".replace("TMP", str(tmp_path))) and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_training_command_refuses_an_interpreter_before_it_makes_a_run_directory(tmp_path: Path) -> None:
    done = run("torch_impl.train", f"python={tmp_path}", directory=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"error: python={tmp_path}: is a directory; name its interpreter, such as")
    assert not list(tmp_path.iterdir())


def require_environment(name: str) -> str:
    """Return the interpreter of one of ENVIRONMENTS. Skip the test if it was not made."""
    if not (MADE / name / "ready").exists():
        pytest.skip(f"{MADE / name}: not there; make test-environments makes it")
    return find_python(MADE / name)


@pytest.mark.parametrize(("name", "version", "scores"), [("keras-3.9", "3.9", "true"), ("keras-3.6", "3.6", "false")])
def test_a_change_of_a_layer_of_keras_is_named(name: str, version: str, scores: str, tmp_path: Path) -> None:
    python = require_environment(name)
    (tmp_path / "my_model.py").write_text(ATTENTION)
    stream = np.random.default_rng(0)
    for part, count in (("train", 96), ("validation", 32)):
        lengths = stream.integers(3, 12, count)
        tokens = stream.integers(1, 20, (count, 12)) * (np.arange(12) < lengths[:, None])
        np.savez(tmp_path / f"{part}.npz", tokens=tokens.astype(np.int32), labels=stream.integers(0, 3, count))
    model = ["model=custom", "model.tf=my_model:build", f"model.arguments.scores={scores}"]
    data = ["data=arrays", "data.train=train.npz", "data.validation=validation.npz"]
    sides = ["a=tf:single", "b=tf:single", f"a.python={python}"]
    done = run("common.diagnose", *sides, *model, *data, "output=d", directory=tmp_path)
    assert done.returncode == 1, done.stderr
    record = read_diagnosis(tmp_path / "d" / "diagnosis.json")
    assert record["first"] == {"stage": "activations", "tensor": "input of attention/attention_output"}
    assert all(f"the environment has keras {version}." in cause["sentence"] for cause in record["causes"])


def test_a_change_of_the_loss_of_keras_is_named(tmp_path: Path) -> None:
    python = require_environment("keras-3.13")
    (tmp_path / "script.py").write_text(REGULARIZER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "tensorflow"}
    for name, interpreter in (("old", python), ("new", sys.executable)):
        subprocess.run([interpreter, "script.py", name], cwd=tmp_path, env=environment, check=True, timeout=400)
    done = run("common.diagnose", "old", "new", "output=d", directory=tmp_path)
    assert done.returncode == 1, done.stderr
    record = read_diagnosis(tmp_path / "d" / "diagnosis.json")
    assert record["first"] == {"stage": "loss", "tensor": "step 1: loss"}
    (cause,) = record["causes"]
    assert "the activity regularizer of sequential/hidden; it may come from keras 3.13." in cause["sentence"]


@pytest.mark.parametrize("name", [name for name in ENVIRONMENTS if name.startswith("tensorflow")])
def test_other_versions_are_in_lockstep(name: str, tmp_path: Path) -> None:
    python = require_environment(name)
    small = ["data=digits", "model=convnet", "train.steps=10", "train.precision=float64"]
    runs = "run=[tf:single,tf:single@other]"
    done = run("common.compare", runs, f"environments={{other: {python}}}", *small, "--check", directory=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing exceeds the tolerance" in done.stdout


def test_models_of_transformers_four_are_in_lockstep_with_those_of_five(tmp_path: Path) -> None:
    python = require_environment("transformers-4.57")
    overrides = [*make_overrides(tmp_path, "hf"), "train.steps=5"]
    runs = "run=[torch:single,torch:single@other]"
    done = run("common.compare", runs, f"environments={{other: {python}}}", *overrides, "--check", directory=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    done = run("torch_impl.train", "model=bert_tiny", f"python={python}", directory=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"error: python={python}: has transformers 4.57" in done.stderr


def test_own_models_need_a_newer_keras_than_other_models(tmp_path: Path) -> None:
    python = require_environment("tensorflow-2.16")
    code = "import keras\n\ndef build():\n    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])\n"
    (tmp_path / "my_model.py").write_text(code)
    np.savez(tmp_path / "train.npz", x=np.ones((32, 4), np.float32), labels=np.arange(32) % 2)
    data = ["data=arrays", "data.train=train.npz", "data.validation=train.npz", "model=custom"]
    done = run("tf_impl.train", *data, "model.tf=my_model:build", f"python={python}", directory=tmp_path)
    reason = "model.tf=my_model:build: needs Keras 3.6 or newer, and the environment has Keras 3.3"
    expected = f"error: python={python}: in that environment, {reason}"
    assert done.returncode == 2 and expected in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1
