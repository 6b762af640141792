"""Tests of sparse gradients, of which Keras clips repeated rows before it adds them."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch
from safetensors.numpy import load_file

from common.diagnose.recorded.walk import diagnose_records
from tf_impl.record import Recorder
from torch_impl.record import Recorder as TorchRecorder

STREAM = np.random.default_rng(0)
INDICES, LABELS = STREAM.integers(0, 5, (16, 6)), STREAM.normal(size=(16, 1)).astype("float32")
NAME = "gradient/sequential/embedding/embeddings"


class Net(torch.nn.Module):
    """The model of the other framework."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.fc = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 1)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """Return a number for each row."""
        return self.fc(self.embedding(indices).mean(1))


def train_keras(directory: Path, optimizer: Any, is_dense: bool = False) -> Path:
    """Train an embedding. is_dense: whether the script adds the rows of each index before the update."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Embedding(5, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((6,), dtype="int64"), *layers], name="sequential")

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.mean_squared_error(y, model(x)))
        gradients = tape.gradient(loss, model.trainable_variables)
        if is_dense:
            gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        optimizer.apply_gradients(list(zip(gradients, model.trainable_variables, strict=True)))

    recorder = Recorder(str(directory), model, optimizer, steps=2)
    for x, y in tf.data.Dataset.from_tensor_slices((INDICES, LABELS)).batch(8):
        with recorder.step():
            step(x, y)
    return directory


def train_torch(directory: Path, followed: Path, limit: float, is_norm: bool = False) -> Path:
    """Train the same model in PyTorch, and clip each element of the gradients, or their norm."""
    torch.set_default_dtype(torch.float32)  # a float64 model of another test may have changed it
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    halves = zip(np.split(INDICES, 2), np.split(LABELS, 2), strict=True)
    loader = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in halves]
    recorder = TorchRecorder(str(directory), model, optimizer, steps=2, follow=str(followed))
    for x, y in recorder.batches(loader):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        clip = torch.nn.utils.clip_grad_norm_ if is_norm else torch.nn.utils.clip_grad_value_
        clip(model.parameters(), limit)
        optimizer.step()
    return directory


@pytest.mark.parametrize("kind", [keras.optimizers.SGD, keras.optimizers.Adam])
@pytest.mark.parametrize("argument", ["clipvalue", "clipnorm"])
@pytest.mark.parametrize("is_dense", [False, True])
def test_the_rows_that_keras_clips_are_recorded(kind: Any, argument: str, is_dense: bool, tmp_path: Path) -> None:
    train_keras(tmp_path / "a", kind(0.1, **{argument: 0.01}), is_dense)
    facts = json.loads((tmp_path / "a" / "record.json").read_text())
    names = {"sequential/embedding/embeddings"}
    assert [set(step.get("clipped_rows", [])) for step in facts["steps"]] == [set() if is_dense else names] * 2
    assert not any("differ from those that the update used" in note for note in facts["not_recorded"])
    arrays = load_file(tmp_path / "a" / "step-00000001.safetensors")
    is_larger = np.abs(arrays[NAME]).max() > 0.0101
    assert is_larger == (argument == "clipvalue" and not is_dense) or argument == "clipnorm"
    train_keras(tmp_path / "b", kind(0.1, **{argument: 0.01}), is_dense)
    assert diagnose_records(tmp_path / "a", tmp_path / "b").causes == []


@pytest.mark.parametrize("is_dense", [False, True])
def test_a_script_that_clips_the_sum_of_the_rows_differs(is_dense: bool, tmp_path: Path) -> None:
    train_keras(tmp_path / "a", keras.optimizers.SGD(0.1, clipvalue=0.001), is_dense)
    causes = diagnose_records(tmp_path / "a", train_torch(tmp_path / "b", tmp_path / "a", 0.001)).causes
    expected = [] if is_dense else [("clipped_per_row", "a", True)]
    assert [(cause.cause, cause.side, cause.confirmed) for cause in causes] == expected


def test_a_script_of_keras_that_adds_the_rows_first_differs(tmp_path: Path) -> None:
    for name in "ab":
        train_keras(tmp_path / name, keras.optimizers.SGD(0.1, clipvalue=0.001), is_dense=name == "b")
    causes = diagnose_records(tmp_path / "a", tmp_path / "b").causes
    assert [(cause.cause, cause.side, cause.confirmed) for cause in causes[:1]] == [("clipped_per_row", "a", False)]


@pytest.mark.parametrize("kind", [keras.optimizers.SGD, keras.optimizers.Adam])
@pytest.mark.parametrize("is_dense", [False, True])
def test_a_norm_that_counts_the_rows_one_by_one_is_recorded(kind: Any, is_dense: bool, tmp_path: Path) -> None:
    for name in "ab":
        train_keras(tmp_path / name, kind(0.1, global_clipnorm=0.01), is_dense)
    facts = json.loads((tmp_path / "a" / "record.json").read_text())
    assert [len(step.get("clipped_rows", [])) for step in facts["steps"]] == [0 if is_dense else 3] * 2
    assert diagnose_records(tmp_path / "a", tmp_path / "b").causes == []


@pytest.mark.parametrize("is_dense", [False, True])
def test_a_script_whose_norm_counts_the_sums_of_the_rows_differs(is_dense: bool, tmp_path: Path) -> None:
    train_keras(tmp_path / "a", keras.optimizers.SGD(0.1, global_clipnorm=0.01), is_dense)
    causes = diagnose_records(tmp_path / "a", train_torch(tmp_path / "b", tmp_path / "a", 0.01, is_norm=True)).causes
    expected = [] if is_dense else [("clipping_norm", "a", True)]
    assert [(cause.cause, cause.side, cause.confirmed) for cause in causes] == expected
