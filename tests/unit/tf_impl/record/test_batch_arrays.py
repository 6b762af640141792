"""Scripts whose batches have arrays that neither the model nor a loss receives, and calls that only gradients need."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from common.diagnose.recorded.walk import diagnose_records
from tests.unit.tf_impl.record.test_several_calls import read_facts
from tf_impl.record import FitRecorder, Recorder

STREAM = np.random.default_rng(0)
X = STREAM.standard_normal((24, 5)).astype("float32")
Y, WEIGHTS = STREAM.random((2, 24, 3)).astype("float32")
Train = Callable[[Path, Path | None], list[float]]


def _make_model() -> keras.Model:
    return keras.Sequential([keras.Input([5]), keras.layers.Dense(3)])


class Weighed(keras.Model):
    """A model whose own step multiplies the losses by weights from its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = _make_model()

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.inner(inputs)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        x, (y, weights) = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.mean_squared_error(y, self(x)) * weights[:, 0])
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def fit(directory: Path, follow: Path | None) -> list[float]:
    keras.utils.set_random_seed(0 if follow is None else 1)
    model = Weighed()
    model.compile(keras.optimizers.SGD(0.1))
    batches = tf.data.Dataset.from_tensor_slices((X, (Y, WEIGHTS)))
    batches = batches.batch(8) if follow is None else batches.shuffle(24).batch(8)
    losses: list[float] = []
    log = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: losses.append(logs["loss"]))
    recorder = FitRecorder(str(directory), follow=None if follow is None else str(follow))
    model.fit(batches, callbacks=[log, recorder], verbose=0)
    return losses


def train(directory: Path, follow: Path | None) -> list[float]:
    keras.utils.set_random_seed(0 if follow is None else 1)
    model, optimizer = _make_model(), keras.optimizers.SGD(0.1)
    recorder = Recorder(str(directory), model, optimizer, follow=None if follow is None else str(follow))

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.mean_squared_error(y, model(x)) * weights[:, 0])
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    batches: Any = tf.data.Dataset.from_tensor_slices((X, Y, WEIGHTS)).batch(8)
    losses = []
    for batch in batches if follow is None else recorder.batches(batches.shuffle(3)):
        with recorder.step():
            losses.append(float(train_step(*batch)))
    return losses


@pytest.mark.parametrize(("run", "name"), [(fit, "1.1"), (train, "2")])
def test_arrays_that_only_the_script_uses_are_recorded_and_followed(run: Train, name: str, tmp_path: Path) -> None:
    losses = run(tmp_path / "old", None)
    for step in (1, 2, 3):
        arrays = load_file(tmp_path / f"old/step-{step:08d}.safetensors")
        np.testing.assert_array_equal(arrays[f"batch/0/other/{name}"], WEIGHTS[8 * step - 8 :][:8])
        assert [key for key in arrays if "/other/" in key] == [f"batch/0/other/{name}"]
    assert run(tmp_path / "new", tmp_path / "old") == losses
    assert diagnose_records(tmp_path / "old", tmp_path / "new").is_equal


@pytest.mark.parametrize("is_penalized", [True, False])
def test_a_call_that_the_loss_needs_for_a_gradient_is_counted(is_penalized: bool, tmp_path: Path) -> None:
    """The loss depends on the second call only by the gradients of its output, as in a gradient penalty."""
    model, optimizer = _make_model(), keras.optimizers.SGD(0.1)
    recorder = Recorder(str(tmp_path), model, optimizer, steps=1)

    @tf.function
    def train_step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x))
            mixed = 0.5 * x + 1
            with tf.GradientTape() as inner:
                inner.watch(mixed)
                outputs = model(mixed)
            penalty = tf.reduce_mean(tf.square(inner.gradient(outputs, mixed)))
            loss += penalty if is_penalized else 0 * loss
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    with recorder.step():
        train_step(tf.constant(X[:8]))
    assert read_facts(tmp_path)["steps"][0]["calls"] == [2 if is_penalized else 1]
