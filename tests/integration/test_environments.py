"""A side in another Python environment: its runs, the stage "environment" of a diagnosis, and mistakes."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from common.compare.__main__ import main as compare
from common.diagnose.__main__ import main as diagnose
from common.diagnose.diagnosis import read_diagnosis
from common.map.__main__ import main as map_models
from common.training.rows import read_rows
from tests.conftest import ROOT
from tests.environments import ENVIRONMENTS, find_python, link_package, make_environment

MADE = Path(ROOT, "build", "environments")  # by make test-environments
NORMALIZATION = "nn/modules/normalization.py"
MODEL = """
import torch

def build():
    norm = torch.nn.LayerNorm(16)  # with PyTorch's default epsilon
    return torch.nn.Sequential(torch.nn.Linear(8, 16), norm, torch.nn.ReLU(), torch.nn.Linear(16, 3))
"""


# Before Keras 3.10 a query whose keys are all masked still attended to them, and now to none (keras-team/keras 21149)
ATTENTION = """
import keras
from keras import layers

def build():
    tokens = keras.Input((12,), dtype="int32", name="tokens")
    x = layers.Embedding(20, 16, mask_zero=True)(tokens)
    x, _ = layers.MultiHeadAttention(2, 8, name="attention")(x, x, return_attention_scores=True)
    return keras.Model(tokens, layers.Dense(3)(layers.GlobalMaxPooling1D()(x)))
"""


def run(module: str, *arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of Lockstep in a directory, which user code is imported from."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (directory, ROOT)))}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=400)


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment whose PyTorch has another default epsilon of LayerNorm."""
    directory = tmp_path_factory.mktemp("environments") / "patched"
    packages = make_environment(directory)
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).parent
    link_package(source, packages / "torch", NORMALIZATION, "eps: float = 1e-5", "eps: float = 1e-3")
    return find_python(directory)


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


def test_a_changed_default_of_a_package_is_named(patched: str, experiment: Path) -> None:
    arguments = [*list_arguments(experiment), "a=torch:single", "b=torch:single", f"b.python={patched}", "output=d"]
    done = run("common.diagnose", *arguments, directory=experiment)
    assert done.returncode == 1, done.stderr
    record = read_diagnosis(experiment / "d" / "diagnosis.json")
    assert record["first"] == {"stage": "activations", "tensor": "1"}  # the LayerNorm of the Sequential
    (cause,) = record["causes"]
    expected = f"the environment has one version of torch, whose code differs: torch/{NORMALIZATION}"
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


MISTAKES: dict[str, tuple[Callable[[Sequence[str]], int], list[str], str]] = {
    "no Python": (
        diagnose,
        ["a=torch:single", "b=tf:single", "b.python=/bin/true"],
        "b.python=/bin/true: cannot run Lockstep",
    ),
    "of a side of a map": (
        map_models,
        ["model.torch=a:b", "model.tf=c:d", "inputs={x: float32[2]}", "tf.python=TMP/none"],
        "tf.python=TMP/none: no such interpreter",
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
        "environments.old=TMP/none: no such interpreter",
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


def test_a_change_of_keras_is_named(tmp_path: Path) -> None:
    python = require_environment("keras-3.9")
    (tmp_path / "my_model.py").write_text(ATTENTION)
    stream = np.random.default_rng(0)
    for name, count in (("train", 96), ("validation", 32)):
        lengths = stream.integers(3, 12, count)
        tokens = stream.integers(1, 20, (count, 12)) * (np.arange(12) < lengths[:, None])
        np.savez(tmp_path / f"{name}.npz", tokens=tokens.astype(np.int32), labels=stream.integers(0, 3, count))
    data = ["data=arrays", "data.train=train.npz", "data.validation=validation.npz"]
    sides = ["a=tf:single", "b=tf:single", f"a.python={python}", "model=custom", "model.tf=my_model:build"]
    done = run("common.diagnose", *sides, *data, "output=d", directory=tmp_path)
    assert done.returncode == 1, done.stderr
    record = read_diagnosis(tmp_path / "d" / "diagnosis.json")
    assert record["first"] == {"stage": "activations", "tensor": "input of attention/attention_output"}
    assert all("the environment has keras 3.9." in cause["sentence"] for cause in record["causes"])


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_other_versions_are_in_lockstep(name: str, tmp_path: Path) -> None:
    python = require_environment(name)
    small = ["data=digits", "model=convnet", "train.steps=10", "train.precision=float64"]
    runs = "run=[tf:single,tf:single@other]"
    done = run("common.compare", runs, f"environments={{other: {python}}}", *small, "--check", directory=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing exceeds the tolerance" in done.stdout
