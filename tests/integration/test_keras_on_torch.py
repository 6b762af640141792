"""One Keras factory trains on both sides: PyTorch's ranks start the run, and TensorFlow continues it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from common.training.rows import read_rows
from tests.conftest import ROOT

MODEL = """
import keras
from keras import layers

def build():
    x = keras.Input((8, 8, 1), name="images")
    y = layers.BatchNormalization()(layers.Conv2D(4, 3, strides=2, activation="relu")(x))
    return keras.Model(x, layers.Dense(3)(layers.Dropout(0.5)(layers.Flatten()(y))))
"""


def train(side: str, directory: Path, *arguments: str) -> list[dict[str, float]]:
    """Train four steps, and return the rows of metrics.jsonl."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (directory, ROOT)))}
    data = ["data=arrays", "data.channels=[images]", *(f"data.{name}={name}.npz" for name in ("train", "validation"))]
    steps = ["train.steps=4", "train.checkpoint_every=2", "train.global_batch_size=7", "train.precision=float64"]
    model = ["model=custom", "model.keras=my_keras:build", "model.sync_batch_norm=true"]
    command = [sys.executable, "-m", f"{side}_impl.train", *model, *data, *steps, f"run_dir={side}", *arguments]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return read_rows(directory / side / "metrics.jsonl")


@pytest.mark.slow
def test_tensorflow_continues_a_run_of_pytorch(tmp_path: Path) -> None:
    stream = np.random.default_rng(0)
    (tmp_path / "my_keras.py").write_text(MODEL)
    for name, count in (("train", 64), ("validation", 16)):
        images = stream.standard_normal((count, 8, 8, 1)).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", images=images, labels=stream.integers(0, 3, count))
    torch = train("torch", tmp_path, "strategy=ddp", "strategy.replicas=2")
    tf = train("tf", tmp_path, "strategy=single", "resume=torch/checkpoints/step-00000002")
    assert tf[-1]["replicas"] == 1
    for name in ("loss", "grad_norm"):
        np.testing.assert_allclose([row[name] for row in tf[-2:]], [row[name] for row in torch[-2:]], rtol=1e-12)
    torch_loss, tf_loss = (read_rows(tmp_path / side / "evals.jsonl")[-1]["loss"] for side in ("torch", "tf"))
    assert torch_loss == pytest.approx(tf_loss, rel=1e-12)
