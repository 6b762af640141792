"""Scripts whose model has no variables before the first step."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from tf_impl.record import FitRecorder, Recorder

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(10, 8, 4)).astype("float32"), RNG.normal(size=(10, 2, 1)).astype("float32")


class Shifted(keras.initializers.Initializer):
    """An initializer that draws other numbers each time that it is called."""

    def __call__(self, shape: tuple[int, ...], dtype: str | None = None, **kwargs: object) -> tf.Tensor:
        return keras.initializers.GlorotNormal()(shape, dtype) + 0.1


class Embedding(keras.layers.Layer):
    """A layer without `build`: Keras finds its variables by a symbolic pass, which its convolutions refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.first = keras.layers.Conv1D(4, 5, strides=2, padding="same", kernel_initializer=Shifted())
        self.second = keras.layers.Conv1D(4, 5, strides=2, padding="same", kernel_initializer=Shifted())

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.second(self.first(x))


class Recognizer(keras.Model):
    """A model with a Sequential that accepts batches only of the size for which it was built."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential([Embedding(), keras.layers.Dense(1)])

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.encoder(x)

    def train_step(self, data: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(data["x"]) - data["y"]) ** 2)
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def _fit(callbacks: list[FitRecorder]) -> list[float]:
    keras.utils.set_random_seed(0)
    model = Recognizer()
    model.compile("sgd")
    data = tf.data.Dataset.from_tensor_slices({"x": X, "y": Y}).batch(4)
    losses: list[float] = model.fit(data, epochs=2, verbose=0, callbacks=callbacks).history["loss"]
    return losses


def test_a_model_is_built_as_without_a_recorder(tmp_path: Path) -> None:
    """It is built for batches of any size: the last batch is smaller."""
    losses = _fit([])
    assert _fit([FitRecorder(str(tmp_path / "record"))]) == losses
    facts = json.loads((tmp_path / "record/record.json").read_text())
    assert facts["complete"]
    assert not any("could not be computed beside the training" in sentence for sentence in facts["not_recorded"])


def _train(recorder: Callable[[keras.Model, keras.optimizers.Optimizer], Recorder | None]) -> list[float]:
    keras.utils.set_random_seed(0)
    model = Recognizer()
    optimizer = keras.optimizers.SGD(0.1)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        weights = model.trainable_weights
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    recording, losses = recorder(model, optimizer), []
    for _ in range(4):
        with contextlib.nullcontext() if recording is None else recording.step():
            losses.append(float(step(X, Y)))
    return losses


def test_a_loop_draws_the_initial_weights_that_it_draws_without_a_recorder(tmp_path: Path) -> None:
    """Tracing calls the initializer more often than an eager step does."""
    losses = _train(lambda model, optimizer: None)
    assert _train(lambda model, optimizer: Recorder(str(tmp_path / "record"), model, optimizer)) == losses
    assert json.loads((tmp_path / "record/record.json").read_text())["complete"]
