"""Tests of a step that calls layers of the model instead of the model, as scripts with a train_step of their own do."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from tf_impl.record import FitRecorder, Recorder

X = np.random.default_rng(0).standard_normal((16, 4)).astype("float32")


class Autoencoder(keras.Model):
    """A model that is never called itself."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential([keras.Input([4]), keras.layers.Dense(2, name="code")], name="encoder")
        self.decoder = keras.Sequential([keras.Input([2]), keras.layers.Dense(4, name="image")], name="decoder")

    def train_step(self, data: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.decoder(self.encoder(data)) - data) ** 2)
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def fit(directory: Path, follow: str | None = None) -> Autoencoder:
    model = Autoencoder()
    model.compile(optimizer=keras.optimizers.Adam(1e-2))
    model.fit(X, batch_size=8, epochs=2, verbose=0, callbacks=[FitRecorder(str(directory), follow=follow)])
    return model


def read_facts(directory: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((directory / "record.json").read_text())
    return facts


def test_the_layers_that_a_train_step_calls_are_recorded_and_can_be_followed(tmp_path: Path) -> None:
    fit(tmp_path / "old")
    facts = read_facts(tmp_path / "old")
    assert [sentence.partition(":")[0] for sentence in facts["not_recorded"]] == [
        "The step calls layers of the model (encoder, decoder) instead of the model",
        "The loss function was not seen",
    ]
    assert {"code", "image"} <= {layer["path"].rpartition("/")[2] for layer in facts["model"]["layers"]}
    start, step = (load_file(tmp_path / "old" / name) for name in ("start.safetensors", "step-00000001.safetensors"))
    assert len([name for name in start if name.startswith("weight/")]) == 4
    received, returned = step["batch/0/input/0"], step["batch/0/output/0"]
    assert received.shape == returned.shape == (8, 4)
    assert any(name.startswith("slot/") for name in step)
    fit(tmp_path / "new", follow=str(tmp_path / "old"))
    losses = [[step["losses"] for step in read_facts(tmp_path / name)["steps"]] for name in ("old", "new")]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


def test_an_eager_step_that_calls_layers_cannot_follow(tmp_path: Path) -> None:
    fit(tmp_path / "old")
    model, optimizer = Autoencoder(), keras.optimizers.Adam(1e-2)
    recorder = Recorder(str(tmp_path / "new"), model, optimizer, follow=str(tmp_path / "old"))
    with pytest.raises(ValueError, match="put the step into a tf.function, to follow"), recorder.step():
        model.encoder(tf.constant(X))
    recorder.close()


class Distiller(keras.Model):
    """A model with a teacher, which its loss calls."""

    def __init__(self, is_frozen: bool) -> None:
        super().__init__()
        self.student, self.teacher = (keras.Sequential([keras.Input([4]), keras.layers.Dense(3)]) for _ in range(2))
        self.teacher.trainable = not is_frozen

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.student(x)

    def compute_loss(self, x: tf.Tensor, y: tf.Tensor, y_pred: tf.Tensor, *_: object, **__: object) -> tf.Tensor:
        return tf.reduce_mean((self.teacher(x, training=False) - y_pred) ** 2)


@pytest.mark.parametrize(("is_frozen", "calls"), [(True, 1), (False, 2)])
def test_a_frozen_teacher_within_the_model_is_no_call_of_it(is_frozen: bool, calls: int, tmp_path: Path) -> None:
    model = Distiller(is_frozen)
    model.compile(optimizer=keras.optimizers.SGD(0.1))
    model.fit(X, X[:, :3], batch_size=8, verbose=0, callbacks=[FitRecorder(str(tmp_path))])
    assert read_facts(tmp_path)["steps"][0]["calls"] == [calls]
