"""python -m common.map with models in the directory of a user."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from safetensors.numpy import save_file

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
    """Write their map, and convert weights of another program."""
    stream = np.random.default_rng(0)
    shapes = {"0.weight": (4, 3, 3, 3), "0.bias": (4,), "3.weight": (5, 144), "3.bias": (5,)}
    weights = {f"model.{name}": stream.standard_normal(shape).astype("float32") for name, shape in shapes.items()}
    save_file(weights, tmp_path / "net.safetensors")
    outputs = ("write=map.yaml", "weights=net.safetensors", "convert=net.weights.h5")
    done = command("build", "model.arguments={classes: 5}", INPUTS, *outputs)
    assert (done.returncode, done.stderr) == (0, "")
    assert "3.weight" in done.stdout
    assert (tmp_path / "map.yaml").read_text().count("\nsequential/") == 4
    proven, note, in_float64, in_own_types, converted = done.stdout.splitlines()[-5:]
    assert proven == "proven: both models compute the same"
    assert note == "note: only the tensors under model. are used, without this prefix"
    assert in_float64.startswith("outputs of both files in float64: largest relative difference ")
    assert in_own_types.startswith("outputs of both files in the models' own types: largest relative difference ")
    assert converted == "converted: net.safetensors to net.weights.h5"
    with h5py.File(tmp_path / "net.weights.h5") as file:
        kernel = file["layers/dense/vars/0"][()]
    expected = weights["model.3.weight"].reshape(5, 4, 6, 6).transpose(2, 3, 1, 0).reshape(144, 5)
    np.testing.assert_array_equal(kernel, expected)


def test_models_that_are_not(command: Command, tmp_path: Path) -> None:
    (tmp_path / "net.safetensors").write_text("")
    done = command("wrong", "model.arguments={classes: 5}", INPUTS, "weights=net.safetensors", "convert=net.weights.h5")
    assert (done.returncode, done.stderr) == (1, "")
    *_, error, conversion = done.stdout.splitlines()
    assert error.startswith("not the same: in evaluation mode the outputs differ by ")
    assert conversion == "not converted: net.safetensors, because the models are not proven to be the same"
    assert not (tmp_path / "net.weights.h5").exists()
    place = "after 0 (PyTorch) and sequential/conv2d (Keras), before that layer"
    assert f"PyTorch computes ReLU, Keras the exact GELU {place}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([INPUTS], "model.torch=net_torch:build: raised TypeError: build() missing 1 required positional argument"),
        (["modle.map=x", INPUTS], "modle.map: no such key here; did you mean model.map? the keys are model.torch, "),
        in_matrix([], "inputs: has no value; give inputs=..."),
        in_matrix(["inputs={x: float32}"], "inputs.x=float32: not a dtype with a shape"),
        in_matrix(["model.arguments={classes: 5}", INPUTS, "write=net_torch.py"], "write=net_torch.py: already exists"),
        in_matrix([INPUTS, "weights=net_torch.pt"], "weights=net_torch.pt: has no target; set convert=FILE too"),
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
