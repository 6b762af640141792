"""python -m common.map with models in the directory of a user."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import in_matrix

TORCH = """
from torch import nn

def build(classes):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, classes))
"""
KERAS = """
import keras
from keras import layers

def build(classes):
    return keras.Sequential([layers.Conv2D(4, 3, activation="relu"), layers.Flatten(), layers.Dense(classes)])

def wrong(classes):
    return keras.Sequential([layers.Conv2D(4, 3, activation="gelu"), layers.Flatten(), layers.Dense(classes)])
"""
INPUTS = "inputs={images: float32[2,8,8,channels=3]}"
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """A function that maps the PyTorch model to a Keras model of this name."""
    (tmp_path / "net_torch.py").write_text(TORCH)
    (tmp_path / "net_keras.py").write_text(KERAS)

    def call(tf: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        overrides = ["model.torch=net_torch:build", f"model.tf=net_keras:{tf}", *arguments]
        return subprocess.run(
            [sys.executable, "-m", "common.map", *overrides], cwd=tmp_path, capture_output=True, text=True, timeout=240
        )

    return call


def test_models_that_are_the_same(command: Command, tmp_path: Path) -> None:
    done = command("build", "model.arguments={classes: 5}", INPUTS, "write=map.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "proven: both models compute the same"
    assert "3.weight" in done.stdout
    assert (tmp_path / "map.yaml").read_text().count("\nsequential/") == 4


def test_models_that_are_not(command: Command) -> None:
    done = command("wrong", "model.arguments={classes: 5}", INPUTS)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[-1].startswith("not the same: in evaluation mode the outputs differ by ")
    assert "look between 0 (PyTorch) and sequential/conv2d (Keras) and it" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([INPUTS], "model.torch=net_torch:build: raised TypeError: build() missing 1 required positional argument"),
        (["modle.map=x", INPUTS], "modle.map: no such key here; did you mean model.map? the keys are model.torch, "),
        in_matrix([], "inputs: has no value; give inputs=..."),
        in_matrix(["inputs={x: float32}"], "inputs.x=float32: not a dtype with a shape"),
        in_matrix(["model.arguments={classes: 5}", INPUTS, "write=net_torch.py"], "write=net_torch.py: already exists"),
        in_matrix(
            ["model.arguments={classes: 5}", INPUTS, "write=none/map.yaml"],
            "write=none/map.yaml: there is no directory",
        ),
        in_matrix(
            ["model.map=none.yaml", "model.arguments={classes: 5}", INPUTS],
            "model.map=none.yaml: cannot be read (No such",
        ),
    ],
)
def test_a_mistake_is_an_error_of_one_line(command: Command, arguments: list[str], error: str) -> None:
    done = command("build", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {error}")
    assert done.stderr.count("\n") == 1
